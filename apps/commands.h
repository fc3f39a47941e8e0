// One line a command. Each adds its subcommand to the root; when it is the one that was typed, it runs and sets the
// exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace kestrel {
void AddGenerateCommand(CLI::App& root, int& exit_code);
void AddLogitsCommand(CLI::App& root, int& exit_code);
void AddInspectCommand(CLI::App& root, int& exit_code);
void AddVerifyCommand(CLI::App& root, int& exit_code);
void AddTokenizerCommand(CLI::App& root, int& exit_code);
void AddInitCommand(CLI::App& root, int& exit_code);
void AddQuantizeCommand(CLI::App& root, int& exit_code);
void AddBenchCommand(CLI::App& root, int& exit_code);
}  // namespace kestrel
