//! Random texts that a database, an address or a script might misread.

/// Texts with a meaning somewhere, and those beside the surrogates and at the ends of Unicode.
const PIECES: [&str; 56] = [
    "$",
    "$$",
    "$$ROOT",
    "$$NOW",
    "$fence",
    "$literal",
    "$where",
    "_id",
    "_source",
    "_create",
    "ctx",
    "params.key",
    "holders.owner",
    ".",
    "..",
    "/",
    "//",
    "\\",
    "?",
    "&",
    "=",
    "#",
    "%",
    "%2F",
    "%00",
    "%zz",
    "+",
    "*",
    ":",
    ";",
    ",",
    " ",
    "\t",
    "\n",
    "\r\n",
    "\0",
    "\u{1}",
    "\u{1b}",
    "\u{7f}",
    "\u{85}",
    "\u{301}",
    "\u{200b}",
    "\u{202e}",
    "\u{2028}",
    "\u{d7ff}",
    "\u{e000}",
    "\u{feff}",
    "\u{fffd}",
    "\u{ffff}",
    "\u{10000}",
    "\u{10ffff}",
    "\"",
    "'",
    "{\"a\":[",
    "}]",
    "</script>",
];

/// A source of texts, the same for the same seed.
pub struct Texts(fastrand::Rng);

impl Texts {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A text of `shortest` to `longest` bytes: one piece or two, several pieces, or as many as fit.
    pub fn good(&mut self, shortest: usize, longest: usize) -> String {
        let wanted = match self.0.u8(..8) {
            0 => longest,
            1..4 => self.0.usize(shortest..=longest),
            _ => self.0.usize(shortest..=longest.min(shortest.max(12))),
        };
        let mut text = String::new();
        while text.len() < wanted {
            let before = text.len();
            if self.0.bool() {
                text.push_str(PIECES[self.0.usize(..PIECES.len())])
            } else {
                text.push(self.0.char(..))
            }
            if text.len() > longest {
                text.truncate(before);
                text.push('x');
            }
        }
        text
    }

    /// Mostly a valid text. Now and then it is empty, or too long, by one byte or by far.
    pub fn any(&mut self, longest: usize) -> String {
        match self.0.u8(..40) {
            0 => String::new(),
            1 => self.good(longest + 1, longest + 1),
            2 => self.good(100_000, 100_000),
            _ => self.good(1, longest),
        }
    }
}
