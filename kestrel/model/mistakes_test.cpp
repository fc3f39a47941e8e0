// What went wrong in other engines and shows only in a whole model (K17, E04).
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kestrel/model/checkpoint_test_support.h"
#include "kestrel/model/model.h"

namespace kestrel {
namespace {

const std::string kFixtures = std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/";

class Mistakes : public test::FolderTest {
 protected:
  std::unique_ptr<Model> Load(const std::string& folder) {
    auto model = Model::Load(ctx_, folder, {});
    EXPECT_TRUE(model) << model.error().message;
    return std::move(*model);
  }

  // Appends the logits of every row of ids to out.
  void Forward(const Model& model, SequenceState& state, std::span<const int32_t> ids, Phase phase, Probe* probe,
               std::vector<float>& out) {
    std::vector<int32_t> rows(ids.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
    const Segment segment{&state, 0, static_cast<int64_t>(ids.size()), phase};
    const size_t before = out.size();
    out.resize(before + ids.size() * static_cast<size_t>(model.config().vocab_size));
    const Status status = model.Forward(ctx_, {ids, {&segment, 1}, rows}, out.data() + before, probe);
    ASSERT_TRUE(status) << status.error().message;
  }

  Arena arena_;
  Context ctx_{pool_, arena_};
};

int32_t Best(std::span<const float> x) {
  return static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

// K17: long answers must not drift. 2048 greedy tokens, each from the state the last one left; then the same text read
// at once. The two forms of latent attention round differently, which may decide a tie.
TEST_F(Mistakes, LongGreedyAnswersAgreeWithReadingThemAtOnce) {
  constexpr size_t kTokens = 2048;
  const auto model = Load(kFixtures + "linear-tiny");
  const auto vocab = static_cast<size_t>(model->config().vocab_size);
  SequenceState state = model->NewState(), again = model->NewState();
  std::vector<int32_t> ids = {7}, chosen;
  std::vector<float> logits;
  for (size_t t = 0; t < kTokens; ++t) {
    logits.clear();
    Forward(*model, state, std::span(ids).last(1), Phase::kDecode, nullptr, logits);
    chosen.push_back(Best(logits));
    ids.push_back(t % 16 == 15 ? static_cast<int32_t>(t % vocab) : chosen.back());  // so that no loop settles in
  }
  logits.clear();
  Forward(*model, again, std::span(ids).first(kTokens), Phase::kPrefill, nullptr, logits);
  size_t same = 0;
  for (size_t t = 0; t < kTokens; ++t) same += Best(std::span(logits).subspan(t * vocab, vocab)) == chosen[t] ? 1 : 0;
  EXPECT_GE(same, kTokens - kTokens / 200);
  EXPECT_GT(std::set<int32_t>(chosen.begin(), chosen.end()).size(), 20u) << "the text repeats itself";
}

struct ChosenExperts : Probe {
  void OnRows(int, const char*, const float*, int64_t, int64_t) override {}
  void OnExperts(int layer, const int32_t* ids, int64_t, int64_t) override { first.emplace_back(layer, ids[0]); }
  std::vector<std::pair<int, int32_t>> first;  // layer, best expert of row 0
};

// E04: a fixture whose experts are all zeros tests nothing. Each matrix of an expert that is used must matter.
TEST_F(Mistakes, AZeroedExpertChangesTheLogits) {
  const std::vector<int32_t> ids = {5, 9, 13, 2};
  const auto logits_of = [&](const std::string& folder, Probe* probe) {
    const auto model = Load(folder);
    SequenceState state = model->NewState();
    std::vector<float> logits;
    Forward(*model, state, ids, Phase::kPrefill, probe, logits);
    return logits;
  };
  ChosenExperts chosen;
  const auto want = logits_of(kFixtures + "k3-tiny", &chosen);
  ASSERT_FALSE(chosen.first.empty());
  const auto [layer, expert] = chosen.first.back();
  for (const char* matrix : {"w1", "w2", "w3"}) {
    const std::string folder = Path(matrix), name = "language_model.model.layers." + std::to_string(layer) +
                                                    ".block_sparse_moe.experts." + std::to_string(expert) + "." +
                                                    matrix + ".weight_packed";
    test::fs::copy(kFixtures + "k3-tiny", folder);
    bool found = false;
    for (const auto& e : test::fs::directory_iterator(folder)) {
      if (e.path().extension() != ".safetensors") continue;
      uint64_t bytes = 0;
      {
        const auto file = SafetensorsFile::Open(e.path().string());
        ASSERT_TRUE(file);
        const TensorEntry* t = file->Find(name);
        if (t == nullptr) continue;
        bytes = t->end - t->begin;
      }
      test::Overwrite(e.path().string(), test::PlaceInFile(e.path().string(), name), std::string(bytes, '\0'));
      found = true;
    }
    ASSERT_TRUE(found) << name;
    EXPECT_NE(logits_of(folder, nullptr), want) << name;
  }
}

}  // namespace
}  // namespace kestrel
