// `kestrel tokenizer encode|decode MODEL [--specials] [--json] (TEXT | --file F | --jsonl F)`.
#pragma once

namespace CLI {
class App;
}

namespace kestrel {

// Adds the subcommand; its callback leaves 0 or 1 in exit_code, which must outlive the parse.
void AddTokenizerCommand(CLI::App& root, int& exit_code);

}  // namespace kestrel
