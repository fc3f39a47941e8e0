// The routed experts of a checkpoint from BF16 or F32 to MXFP4, per group of 32 by the better of the two neighbouring
// exponents (spec 05). Everything else is copied byte for byte: other tensors, tokenizer files, every key of
// config.json, which gains quantization_config. Streams: memory does not grow with the model.
//
//   KESTREL_ASSIGN_OR_RETURN(const QuantizeReport report, QuantizeExperts(pool, "nano", "nano-mxfp4", {}));
#pragma once

#include <cstdint>
#include <string>

#include "kestrel/base/result.h"
#include "kestrel/base/thread_pool.h"
#include "kestrel/formats/sharded_writer.h"
#include "kestrel/model/run_parts.h"

namespace kestrel {

struct QuantizeReport {
  int64_t matrices = 0;
  uint64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  double relative_error = 0;                   // ||quantized - original|| / ||original|| over all experts
};

// `out` must be free or an empty folder, and appears whole or not at all. Errors: experts that are MXFP4 already or not
// there, widths that are no multiple of 32, tensors that do not fit the config, a NaN or infinity in an expert.
Result<QuantizeReport> QuantizeExperts(ThreadPool& pool, const std::string& in, const std::string& out,
                                       const ByteProgress& progress, uint64_t shard_bytes = kShardBytes);

}  // namespace kestrel
