//! The fonts and colours of the pictures.

/// The fonts of the system, in the order that GitHub uses.
pub(super) const FONTS: &str =
    "-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif";

pub(super) struct Theme {
    pub(super) background: &'static str,
    pub(super) text: &'static str,
    pub(super) muted: &'static str,
    pub(super) line: &'static str,
    pub(super) a: Colours,
    pub(super) b: Colours,
    pub(super) refused: &'static str,
    pub(super) margin: &'static str,
}

/// The colours of a process.
#[derive(Clone, Copy)]
pub(super) struct Colours {
    /// The colour of the process. A text on it has the colour of the background.
    pub(super) solid: &'static str,
    /// The colour for what a document says about the process.
    pub(super) tint: &'static str,
    /// The colour of a text on the tint.
    pub(super) text: &'static str,
}

pub(super) const LIGHT: Theme = Theme {
    background: "#ffffff",
    text: "#1f2328",
    muted: "#59636e",
    line: "#b7bfc8",
    a: Colours {
        solid: "#0969da",
        tint: "#ddf4ff",
        text: "#0550ae",
    },
    b: Colours {
        solid: "#1a7f37",
        tint: "#dafbe1",
        text: "#116329",
    },
    refused: "#cf222e",
    margin: "#d4a72c",
};

pub(super) const DARK: Theme = Theme {
    background: "#0d1117",
    text: "#f0f6fc",
    muted: "#9198a1",
    line: "#59636e",
    a: Colours {
        solid: "#58a6ff",
        tint: "#12294a",
        text: "#a5d6ff",
    },
    b: Colours {
        solid: "#3fb950",
        tint: "#12331d",
        text: "#7ee787",
    },
    refused: "#ff7b72",
    margin: "#d29922",
};
