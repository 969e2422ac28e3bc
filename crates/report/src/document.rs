//! The document that a section builds: headings, prose, tables, lists, figures. It has the content and its meaning;
//! `markdown` and `html` render it.

/// The meaning of a status, a tile or a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Evidence that something works.
    Good,
    /// Something fails.
    Bad,
    /// Something needs attention.
    Warn,
    /// Neither good nor bad.
    Plain,
}

/// The target of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file of the run folder, relative to it.
    File(String),
    /// An anchor in this document.
    Anchor(String),
    /// A public page.
    Web(String),
}

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inline {
    /// Text.
    Text(String),
    /// Emphasized text.
    Strong(String),
    /// Code: a path, a name, a version.
    Code(String),
    /// A link.
    Link(String, Target),
    /// A status word.
    Chip(Tone, String),
    /// Secondary text, on a separate line below the other text of its cell.
    Note(String),
}

/// A line of text, built from parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prose(pub(crate) Vec<Inline>);

impl Prose {
    /// An empty line of text.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds text.
    pub(crate) fn text(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Text(words.into()));
        self
    }

    /// Adds emphasized text.
    pub(crate) fn strong(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Strong(words.into()));
        self
    }

    /// Adds code.
    pub(crate) fn code(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Code(words.into()));
        self
    }

    /// Adds a status word.
    pub(crate) fn chip(mut self, tone: Tone, word: impl Into<String>) -> Self {
        self.0.push(Inline::Chip(tone, word.into()));
        self
    }

    /// Adds secondary text below.
    pub(crate) fn note(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Note(words.into()));
        self
    }

    /// Adds a link to a file of the run folder; its text is the file's name.
    pub(crate) fn file(mut self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.0.push(Inline::Link(path.clone(), Target::File(path)));
        self
    }

    /// Adds a link within the document.
    pub(crate) fn anchor(mut self, words: impl Into<String>, id: impl Into<String>) -> Self {
        self.0.push(Inline::Link(words.into(), Target::Anchor(id.into())));
        self
    }

    /// Adds a link to a public page; its text is the URL.
    pub(crate) fn web(mut self, address: impl Into<String>) -> Self {
        let address = address.into();
        self.0.push(Inline::Link(address.clone(), Target::Web(address)));
        self
    }

    /// The text without markup.
    pub(crate) fn plain(&self) -> String {
        self.0
            .iter()
            .map(|piece| match piece {
                Inline::Text(words)
                | Inline::Strong(words)
                | Inline::Code(words)
                | Inline::Link(words, _)
                | Inline::Note(words)
                | Inline::Chip(_, words) => words.as_str(),
            })
            .collect()
    }
}

impl<T: Into<String>> From<T> for Prose {
    fn from(words: T) -> Self {
        Self::new().text(words)
    }
}

/// Alignment of a table column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table. Its caption names the file that the numbers are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    /// The content, and the file that it is from.
    pub(crate) caption: Prose,
    /// Heads of the columns.
    pub(crate) columns: Vec<(String, Align)>,
    /// Rows with one cell per column.
    pub(crate) rows: Vec<Vec<Prose>>,
    /// Whether cells may be wrapped anywhere, so that the first columns fit a phone.
    pub(crate) narrow: bool,
}

impl Table {
    /// An empty table; a column whose head starts with `>` is right-aligned.
    pub(crate) fn new(caption: impl Into<Prose>, columns: &[impl AsRef<str>]) -> Self {
        let columns = columns
            .iter()
            .map(|head| match head.as_ref().strip_prefix('>') {
                Some(head) => (head.to_owned(), Align::Right),
                None => (head.as_ref().to_owned(), Align::Left),
            })
            .collect();
        Self { caption: caption.into(), columns, rows: Vec::new(), narrow: false }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<Prose>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a row has a cell for every column");
        self.rows.push(cells);
    }
}

/// One headline number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tile {
    /// The number.
    pub(crate) value: String,
    /// The unit or noun of the number.
    pub(crate) label: String,
    /// Its source.
    pub(crate) source: Prose,
    /// Its meaning.
    pub(crate) tone: Tone,
}

/// A chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figure {
    /// Anchor.
    pub(crate) id: String,
    /// The content, and the file that it is from.
    pub(crate) caption: Prose,
    /// An `<svg>` element, already escaped.
    pub(crate) svg: String,
}

/// A part of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Block {
    /// A heading below the section's own, with its anchor.
    Heading { id: String, words: Prose },
    /// A paragraph.
    Paragraph(Prose),
    /// A notice.
    Notice(Tone, Prose),
    /// An unordered list.
    List(Vec<Prose>),
    /// Preformatted lines, for example commands.
    Code(Vec<String>),
    /// A table.
    Table(Table),
    /// Headline numbers.
    Tiles(Vec<Tile>),
    /// Charts in a row.
    Figures(Vec<Figure>),
    /// Content that is collapsed at first.
    Details { summary: Prose, blocks: Vec<Block> },
    /// A card, for example one finding.
    Card { tone: Tone, id: String, title: Prose, blocks: Vec<Block> },
}

/// A section: an anchor, a title and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// Anchor.
    pub(crate) id: &'static str,
    /// Title.
    pub(crate) title: &'static str,
    /// Parts in order.
    pub(crate) blocks: Vec<Block>,
}

/// The whole document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    /// Title.
    pub(crate) title: String,
    /// Machine and time, below the title.
    pub(crate) subtitle: Prose,
    /// The verdict, below both.
    pub(crate) verdict: Option<(Tone, Prose)>,
    /// Notices before all sections, for example that the run is incomplete.
    pub(crate) banner: Option<(Tone, Prose)>,
    /// Sections in order.
    pub(crate) sections: Vec<Section>,
}

/// An anchor from text: lower-case ASCII alphanumerics and single hyphens.
pub(crate) fn slug(words: &str) -> String {
    let mut out = String::new();
    for letter in words.chars() {
        if letter.is_ascii_alphanumeric() {
            out.push(letter.to_ascii_lowercase());
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    out.trim_end_matches('-').to_owned()
}
