"""Brings the lines of cargo-public-api into an order of their own, for scripts/public-api.

Each line once, sorted by the path of the item that it is about: so it does not matter in which `impl` block or file a
method is, and an item that other places name is not repeated there.
"""

import re
import sys

# Lines that the compiler and the standard library determine: traits that no code can name, and the traits of unwinding.
# Send, Sync and Unpin are kept.
DECIDED = re.compile(
    r"^impl.* !?core::(marker::(Freeze|StructuralPartialEq|UnsafeUnpin)|panic::unwind_safe::(Ref)?UnwindSafe) for "
)
# rustdoc names a type of another crate by the module that defines it. For leasehold that module is private.
PRIVATE = re.compile(r"\bleasehold::model::(?:[a-z_]+::)*(?=[A-Z])")


def without_generics(text):
    """The text without what stands in angle brackets."""
    text = text.replace("->", "")
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def order(line):
    """The path of the item, whether the line is an `impl` of it, and the line."""
    text = without_generics(line)
    is_impl = text.startswith("impl")
    if is_impl:
        # `impl TRAIT for TYPE where ...`, or `impl TYPE`
        text = text.split(" where ")[0].split(" for ")[-1]
    path = re.search(r"\w+(::\w+)+|\w+$", text)
    return (path.group().split("::") if path else [], is_impl, line)


lines = {PRIVATE.sub("leasehold::", line.rstrip("\n")) for line in sys.stdin}
for line in sorted((line for line in lines if line and not DECIDED.match(line)), key=order):
    print(line)
