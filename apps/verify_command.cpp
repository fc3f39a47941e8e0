// kestrel verify: is a model folder whole?
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/sha256_list.h"
#include "kestrel/base/cpu.h"
#include "kestrel/model/verify.h"

namespace kestrel {
namespace {

struct Options {
  std::string model, sha256;
  int threads = 0;
  bool json = false;
};

std::string Shown(const VerifyProblem& p) { return p.where.empty() ? p.what : fmt::format("{}: {}", p.where, p.what); }

std::string ToJsonText(const VerifyReport& report) {
  nlohmann::ordered_json problems = nlohmann::ordered_json::array();
  for (const VerifyProblem& p : report.problems) {
    nlohmann::ordered_json one = {{"where", p.where}, {"what", p.what}};
    if (p.first_bad >= 0) one.update({{"first_bad", p.first_bad}, {"bad_values", p.bad_values}});
    problems.push_back(std::move(one));
  }
  const nlohmann::ordered_json out = {
      {"ok", report.problems.empty()}, {"tensors", report.tensors}, {"bytes", report.bytes}, {"problems", problems}};
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<bool> RunVerify(const Options& o) {
  std::vector<Sha256Line> lines;
  if (!o.sha256.empty()) {
    KESTREL_ASSIGN_OR_RETURN(lines, ReadSha256List(o.sha256));
  }
  ThreadPool pool(o.threads > 0 ? o.threads : PhysicalCores());
  VerifyReport report;
  {
    Progress progress("reading", 1);
    KESTREL_ASSIGN_OR_RETURN(report,
                             Verify(pool, o.model, [&](double done, double total) { progress.Update(done / total); }));
  }
  if (!lines.empty()) {
    Progress progress("sha256", 1);
    for (VerifyProblem& p :
         CheckSha256(pool, o.model, lines, [&](double done, double total) { progress.Update(done / total); })) {
      report.problems.push_back(std::move(p));
    }
  }
  const bool ok = report.problems.empty();
  std::string text;
  if (o.json) {
    text = ToJsonText(report);
  } else {
    for (const VerifyProblem& p : report.problems) text += Shown(p) + "\n";
    text += fmt::format(
        "{}: {} tensors, {:.3f} GB{}, {}\n", o.model, report.tensors, static_cast<double>(report.bytes) * 1e-9,
        lines.empty() ? "" : fmt::format(", {} files by sha256", lines.size()),
        ok ? "all is well"
           : fmt::format("{} problem{}", report.problems.size(), report.problems.size() == 1 ? "" : "s"));
  }
  KESTREL_RETURN_IF_ERROR(WriteOut(text));
  return ok;
}

}  // namespace

void AddVerifyCommand(CLI::App& root, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("verify", "Check that a model folder is whole: every byte, header and number");
  app->add_option("MODEL", o->model, "model folder")->required();
  app->add_option("--sha256", o->sha256, "also compare files with this list, as sha256sum writes it");
  app->add_option("--threads", o->threads, "threads to use (default: the physical cores)")->check(CLI::Range(1, 1024));
  app->add_flag("--json", o->json, "print one JSON object: ok, tensors, bytes, problems");
  app->footer("Prints one line a problem. Exit code 1 where there is any.");
  app->callback([o, &exit_code] {
    const Result<bool> ok = RunVerify(*o);
    exit_code = !ok ? Fail(ok.error()) : *ok ? 0 : 1;
  });
}

}  // namespace kestrel
