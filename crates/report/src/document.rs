//! The document a section builds: headings, prose, tables, lists, figures. `markdown` and `html` render it.

/// The meaning of a status, a tile or a notice, shown as its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Evidence that something works.
    Good,
    /// Something fails.
    Bad,
    /// A warning.
    Warn,
    /// Neutral.
    Plain,
}

/// The target of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file of the run folder, relative to it.
    File(String),
    /// A place in this document.
    Anchor(String),
    /// A public page.
    Web(String),
}

/// A piece of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inline {
    /// Words.
    Text(String),
    /// Emphasised words.
    Strong(String),
    /// Something a machine wrote or reads: a path, a name, a version.
    Code(String),
    /// Words with a link.
    Link(String, Target),
    /// A status word.
    Chip(Tone, String),
    /// Secondary words, on a separate line at the end of their cell.
    Note(String),
}

/// A line of text built piece by piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prose(pub(crate) Vec<Inline>);

impl Prose {
    /// An empty line.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds words.
    pub(crate) fn text(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Text(words.into()));
        self
    }

    /// Adds emphasised words.
    pub(crate) fn strong(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Strong(words.into()));
        self
    }

    /// Adds something a machine wrote or reads.
    pub(crate) fn code(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Code(words.into()));
        self
    }

    /// Adds a status word.
    pub(crate) fn chip(mut self, tone: Tone, word: impl Into<String>) -> Self {
        self.0.push(Inline::Chip(tone, word.into()));
        self
    }

    /// Adds secondary words on a separate line.
    pub(crate) fn note(mut self, words: impl Into<String>) -> Self {
        self.0.push(Inline::Note(words.into()));
        self
    }

    /// Adds a link to a file of the run folder, shown by its name.
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

    /// Adds a link to a public page, shown by its address.
    pub(crate) fn web(mut self, address: impl Into<String>) -> Self {
        let address = address.into();
        self.0.push(Inline::Link(address.clone(), Target::Web(address)));
        self
    }

    /// The words without their markup.
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

/// The alignment of a table column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table. Its caption names the file the numbers came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    /// The title and the source file.
    pub(crate) caption: Prose,
    /// Heads of the columns.
    pub(crate) columns: Vec<(String, Align)>,
    /// Rows of as many cells as there are columns.
    pub(crate) rows: Vec<Vec<Prose>>,
    /// Whether its cells may be broken anywhere, so that its first columns fit a telephone.
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
    /// The quantity that it counts.
    pub(crate) label: String,
    /// The source of the number.
    pub(crate) source: Prose,
    /// The meaning of the number.
    pub(crate) tone: Tone,
}

/// A picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figure {
    /// Anchor.
    pub(crate) id: String,
    /// The title and the source file.
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
    /// A notice that must not be overlooked.
    Notice(Tone, Prose),
    /// An unordered list.
    List(Vec<Prose>),
    /// Lines to copy verbatim.
    Code(Vec<String>),
    /// A table.
    Table(Table),
    /// Headline numbers.
    Tiles(Vec<Tile>),
    /// Pictures that belong side by side.
    Figures(Vec<Figure>),
    /// A collapsed part.
    Details { summary: Prose, blocks: Vec<Block> },
    /// One finding or another framed unit.
    Card { tone: Tone, id: String, title: Prose, blocks: Vec<Block> },
}

/// A section: an anchor, a title and its parts.
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
    /// Machine and time, under the title.
    pub(crate) subtitle: Prose,
    /// The verdict, under both.
    pub(crate) verdict: Option<(Tone, Prose)>,
    /// A notice above all sections, such as that the run is incomplete.
    pub(crate) banner: Option<(Tone, Prose)>,
    /// Sections in order.
    pub(crate) sections: Vec<Section>,
}

/// An anchor from words: lower-case alphanumerics and single hyphens.
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
