// Every tensor a config asks for, by its published name (spec 02), and the check that a checkpoint holds exactly those.
//
//   ForEachExpectedTensor(config, [&](const ExpectedTensor& t) { Write(t.name, t.shape); });
//   KESTREL_RETURN_IF_ERROR(CheckTensors(config, checkpoint));
#pragma once

#include <functional>
#include <string>

#include "kestrel/formats/checkpoint.h"
#include "kestrel/formats/model_config.h"

namespace kestrel {

enum class TensorKind {
  kMatrix,       // BF16 or F32
  kVector,       // BF16 or F32
  kFloat,        // F32 only: A_log, dt_bias, e_score_correction_bias
  kMxfp4Packed,  // U8 [out, in/2]
  kMxfp4Scale,   // U8 [out, in/32]
};

enum class Component { kEmbedding, kHead, kNorms, kAttnRes, kKda, kMla, kDense, kRouter, kLatent, kShared, kExperts };
const char* Name(Component component);

struct ExpectedTensor {
  std::string name;  // with `language_model.` where the config is nested
  TensorKind kind;
  Shape shape;
  Component component;
  int layer;                                                            // -1: outside the layers
  int expert = -1;                                                      // of routed experts
  enum Init { kNormal, kOnes, kZeros, kConv, kDtBias } init = kNormal;  // how a fresh model begins (spec 05)
};

// The type in which the release stores a tensor (its index gives the sum of all bytes, and that fits no other choice):
// BF16, but F32 for the convolutions and output norms of KDA as for all of kFloat, U8 for MXFP4.
Dtype PublishedDtype(const ModelConfig& config, const ExpectedTensor& tensor);

// In the order of depth: embedding, layers, output.
void ForEachExpectedTensor(const ModelConfig& config, const std::function<void(const ExpectedTensor&)>& f);

// Vision tensors are known and left alone.
bool IsVisionTensor(std::string_view name);

// kNotFound or kMismatch naming the tensor: missing, surplus, of another shape or type, padding of A_log that is not
// zero, a non-finite e8m0 scale (255).
Status CheckTensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace kestrel
