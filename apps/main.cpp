// The program: reads the command line and calls one command.
#include <fmt/format.h>

#include <csignal>

#include "apps/commands.h"
#include "kestrel/base/cpu.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of one write, not the end of the process
  CLI::App root("Kestrel runs models of the Kimi K3 architecture on the CPU.", "kestrel");
  root.set_version_flag("--version", fmt::format("kestrel {} ({}, {} cores)", KESTREL_VERSION,
                                                 kestrel::Name(kestrel::BestIsa()), kestrel::PhysicalCores()));
  root.require_subcommand(1);
  root.footer("Exit codes: 0 done, 1 failed, 2 wrong usage. `kestrel COMMAND --help` explains a command.");
  int exit_code = 0;
  using namespace kestrel;  // the commands
  AddGenerateCommand(root, exit_code);
  AddLogitsCommand(root, exit_code);
  AddInspectCommand(root, exit_code);
  AddVerifyCommand(root, exit_code);
  AddTokenizerCommand(root, exit_code);
  AddInitCommand(root, exit_code);
  AddQuantizeCommand(root, exit_code);
  AddBenchCommand(root, exit_code);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return root.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kestrel: [apps] {}\n", error.what());
    return 1;
  }
  return exit_code;
}
