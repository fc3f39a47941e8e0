#!/usr/bin/env python3
"""Who may include whom, and what may never be there. Prints one line a fault and exits 1 where there is one.

Rooms: the DEPS of each kestrel_room() in CMakeLists.txt, which must stand in the order of ROOMS below. Third-party headers: THIRD_PARTY.
Flags: no -march=native, no fast-math, anywhere in the build.

    tools/check_layering.py [ROOT]
"""
import pathlib
import re
import sys

# What a room may depend on at most; CMakeLists.txt may allow less.
LOW = {"base"}
ROOMS = {
    "base": set(),
    "tensor": LOW,
    "kernels": LOW | {"tensor"},
    "formats": LOW | {"tensor"},
    "comm": LOW | {"tensor"},
    "media": LOW | {"tensor"},
    "text": LOW | {"tensor", "formats"},
    "store": LOW | {"tensor", "formats"},
    "model": LOW | {"tensor", "kernels", "formats", "comm", "store"},
}
ROOMS["train"] = ROOMS["model"] | {"model"}
ROOMS["engine"] = ROOMS["model"] | {"model", "text", "media"}
ROOMS["server"] = {"base", "text", "engine"}
ROOMS["eval"] = {"base", "text"}
EVERYTHING = set(ROOMS)

# First folder (or file) of an #include, and the only places that may have it. Tests may use gtest and, to read data files, JSON.
THIRD_PARTY = {
    r"hwy/": ("kestrel/kernels/simd/",),
    r"(imm|x86|avx\w*|arm_neon|arm_sve)(intrin)?\.h": (
        "kestrel/kernels/matmul/",
        "kestrel/kernels/kda/",
        "kestrel/kernels/simd/mla_ops_bf16.cpp",  # Highway 1.0.3 has no bfloat16 dot product
    ),
    r"nlohmann/": ("kestrel/formats/", "kestrel/text/", "kestrel/server/", "apps/", "bench/", "tests/"),
    r"CLI/": ("apps/",),
    r"fmt/": ("kestrel/", "apps/", "bench/", "tests/"),
    r"tl/": ("kestrel/base/",),
    r"boost/": ("kestrel/server/transport/",),
    r"mpi\.h": ("kestrel/comm/mpi/",),
    r"(oneapi/)?dnnl": ("bench/", "kestrel/bench/"),
    r"(gtest|gmock|rapidcheck)/": (),
}
TEST = re.compile(r"(_test\.cpp|_bench\.cpp|_fuzz\.cpp|test_support\.h)$|^tests/")
TESTS_MAY = re.compile(r"(gtest|gmock|rapidcheck|nlohmann)/")
# A file outside the list may say why it needs intrinsics: `// layering: intrinsics, REASON` near its top.
WAIVER = re.compile(r"^// layering: intrinsics, \S", re.M)

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)
FORBIDDEN_FLAGS = re.compile(r"-march=native|-mtune=native|-mcpu=native|-ffast-math|-Ofast|-funsafe-math|-fassociative-math")
SOURCES = {".h", ".cpp", ".inc", ".hpp"}


def declared_rooms(root):
    """{room: DEPS} of the kestrel_room() calls."""
    text = re.sub(r"#.*", "", (root / "CMakeLists.txt").read_text())
    rooms = {}
    for name, rest in re.findall(r"kestrel_room\(\s*(\w+)([^)]*)\)", text):
        deps = re.search(r"\bDEPS\b([\w\s]*?)(?:\bSYSTEM\b|$)", rest)
        rooms[name] = set(deps.group(1).split()) if deps else set()
    return rooms


def check_include(path, text, include, rooms):
    parts = path.split("/")
    room = parts[1] if parts[0] == "kestrel" else None
    target = re.match(r"kestrel/(\w+)/", include)
    if target:
        if room and target.group(1) != room and target.group(1) not in rooms.get(room, set()):
            return f"room {room} may not include {include}; its DEPS are {' '.join(sorted(rooms.get(room, set()))) or 'none'}"
        return None
    if room and re.match(r"(apps|bench|tests)/", include):
        return f"a room may not include {include}"
    for pattern, places in THIRD_PARTY.items():
        if not re.match(pattern, include):
            continue
        if TEST.search(path) and TESTS_MAY.match(include):
            return None
        if "intrin" in pattern and WAIVER.search(text):
            return None
        if not path.startswith(places):
            return f"{include} only in {', '.join(places) or 'tests'}"
    return None


def faults(root):
    rooms = declared_rooms(root)
    for room, deps in rooms.items():
        if room != "bench" and room not in ROOMS:
            yield f"CMakeLists.txt: room {room} has no place in tools/check_layering.py"
        for dep in deps - (EVERYTHING if room == "bench" else ROOMS.get(room, set())):
            yield f"CMakeLists.txt: room {room} may not depend on {dep}"
    for folder in ("kestrel", "apps", "bench", "tests"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            path = file.relative_to(root).as_posix()
            text = file.read_text(errors="replace")
            for match in INCLUDE.finditer(text):
                fault = check_include(path, text, match.group(1), rooms)
                if fault:
                    yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {fault}"
            if path.startswith("kestrel/") and file.suffix == ".h" and "#pragma once" not in text and not re.search(r"[-.]inl\.h$", file.name):
                yield f"{path}: no #pragma once"
    for file in [root / "CMakeLists.txt", root / "CMakePresets.json", root / "run", *root.glob("cmake/*"), *root.glob("*/**/CMakeLists.txt"), *root.glob(".ci/*")]:
        if not file.is_file() or "build" in file.relative_to(root).parts:
            continue
        for number, line in enumerate(file.read_text().split("\n"), 1):
            flag = FORBIDDEN_FLAGS.search(line)
            if flag and not line.lstrip().startswith("#"):
                yield f"{file.relative_to(root)}:{number}: flag {flag.group(0)}; the default build runs on every x86-64 and keeps IEEE arithmetic"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    found = list(faults(root))
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
