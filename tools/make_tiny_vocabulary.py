#!/usr/bin/env python3
"""Writes kestrel/text/testdata/{tiktoken.model,tokenizer_config.json,cases.jsonl}: a vocabulary of 640 tokens, small enough to
commit, with the special tokens of Kimi K3, and encodings of awkward texts by the reference implementation (PyPI: tiktoken).

    python3 -m venv venv && venv/bin/pip install tiktoken==0.14.0 && venv/bin/python tools/make_tiny_vocabulary.py
"""
import base64
import collections
import json
import pathlib
import random

import tiktoken

HERE = pathlib.Path(__file__).resolve().parent.parent / "kestrel/text/testdata"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
CORPUS = """
A kestrel hangs in the wind above the meadow and watches the grass. It does not flap, it hovers: the head stays where it is,
the wings do the rest. When the vole moves, the bird drops, and the others of the family do the same in the same field at the same time.
the quick brown fox jumps over the lazy dog; she sells sea shells by the sea shore; we've seen that it's what they'll do, I'm sure you're right.
Numbers: 1 2 3 10 100 2024 3.14159 1000000. int main() { return 0; }  for (int i = 0; i < n; ++i) { sum += x[i]; }\n\n\n\t\t    if x:\n        return y
你好世界 中文分词 汉字 日本語のテキスト 한국어 텍스트 привет мир доброе утро ελληνικά नमस्ते résumé naïve café Ünïcödé
""" * 3
# A merge across white space and one that ends in a newline, as the real vocabulary has; and one that crosses half characters.
EXTRA = [b"\n\n", b"\n\n\n", b"  ", b"    ", b"        ", b" \n", b"\r\n", b"<|", b"|>", b"\xe5\xad", b"\x80\xe5", b"aa", b"aaaa", b"aaa"]


def train(total):
    tokens = [bytes([b]) for b in [*range(33, 127), *range(0, 33), *range(127, 256)]]
    known = set(tokens)
    words = collections.Counter(w for line in CORPUS.split("\n") for w in (" " + line).replace(" ", "\x00 ").split("\x00") if w)
    pieces = [([bytes([b]) for b in w.encode()], n) for w, n in words.items()]
    while len(tokens) < total - len(EXTRA):
        pairs = collections.Counter()
        for parts, n in pieces:
            for a, b in zip(parts, parts[1:]):
                pairs[a + b] += n
        best = min(pairs, key=lambda p: (-pairs[p], p))
        if best not in known:
            tokens.append(best)
            known.add(best)
        for parts, _ in pieces:
            i = 0
            while i + 1 < len(parts):
                if parts[i] + parts[i + 1] == best:
                    parts[i : i + 2] = [best]
                i += 1
    for extra in EXTRA:
        if extra not in known:
            tokens.append(extra)
            known.add(extra)
    return tokens


NAMES = {
    0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|end_of_msg|>", True), 3: ("<|open|>", False), 4: ("<|close|>", False),
    5: ("<|sep|>", False), 6: ("[start_header_id]", True), 7: ("[end_header_id]", True), 9: ("[EOT]", True),
    18: ("<|media_begin|>", True), 19: ("<|media_content|>", True), 20: ("<|media_end|>", True), 21: ("<|media_pad|>", True),
    65: ("<osagent_mode>", True), 254: ("[UNK]", True), 255: ("[PAD]", True),
}

ALPHABET = list("aAbBsStTzZ '’!?.-_<|>[]{}\"\\/0129 \t\n\r\v\f") + ["'s", "'LL", "'Re", "'ſ", "ſ", "中", "文", "〇", "々", "⺀", "あ", "한", "é", "e\u0301", "\u0301",
    "\u0903", "ǅ", "ʰ", "ª", "Ⅳ", "½", "１", "٣", "\u00a0", "\u0085", "\u2003", "\u2028", "\u3000", "\u200b", "\u001c", "\ufeff", "🌍", "👩‍💻", "\ufffd", "\u0000",
    "\U00020000", "\U0001F1E6", "İ", "K", "鿿", "ꙮ", "\U00016ff0"]


def cases():
    rng = random.Random(20)
    fixed = ["", " ", "  ", "a", "中文abc", "abc中文", "鿥latin", "newlines", "Hello, world! It's what they'll do. DON'T",
             "\u0301A", "\u0301AB\u0301c", "ªABC", "ABCªDEF", "!ABCªDEF x", "\ta", "\n a", " \n \n  a", "   \r\n\r\n  x", "1234567 8", "1〇2", "!⺀中",
             "'s", "x's't", "x'ſy", "X'Sx", "a'", "a'l", "a'lx", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "<|open|>", "<|end_of_msg|>"]
    random_ones = ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 24))) for _ in range(220)]
    return fixed + random_ones


def pieces(text):
    """Byte lengths of the pre-tokens: with every substring in the vocabulary each pre-token is one token."""
    data = text.encode()
    ranks = {bytes([b]): b for b in range(256)}
    for i in range(len(data)):
        for j in range(i + 2, len(data) + 1):
            ranks.setdefault(data[i:j], len(ranks))
    splitter = tiktoken.Encoding("pieces", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return [len(splitter.decode_single_token_bytes(i)) for i in splitter.encode_ordinary(text)]


def main():
    tokens = train(640)
    HERE.mkdir(parents=True, exist_ok=True)
    (HERE / "tiktoken.model").write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens)))
    base = len(tokens)
    added = {str(base + slot): {"content": name, "special": special} for slot, (name, special) in NAMES.items()}
    (HERE / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}, indent=1) + "\n")

    specials = {NAMES[s][0] if s in NAMES else f"<|reserved_token_{base + s}|>": base + s for s in range(256)}
    reference = tiktoken.Encoding("tiny", pat_str=PATTERN, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens=specials)
    lines = [json.dumps({"text": t, "ids": reference.encode(t, disallowed_special=()), "pieces": pieces(t)}) for t in cases()]
    for text in ["<|open|>message role=\"user\"<|sep|>", "[BOS][EOT]x[PAD", "<|open|", f"<|reserved_token_{base + 200}|>", "<|reserved_token_7|>",
                 "a<|end_of_msg|>b<<|open|>|>", " <|sep|> \n<|sep|>\n"]:
        lines.append(json.dumps({"text": text, "specials": True, "ids": reference.encode(text, allowed_special="all")}))
    (HERE / "cases.jsonl").write_text("\n".join(lines) + "\n")
    print(base, "tokens,", len(lines), "cases")


if __name__ == "__main__":
    main()
