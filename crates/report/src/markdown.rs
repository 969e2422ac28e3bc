//! A document as GitHub-flavoured Markdown.

use crate::document::{Align, Block, Document, Inline, Prose, Table, Target, Tone};
use crate::escape;

/// Limits on the content of a document that would be too long.
#[derive(Debug, Clone, Copy)]
struct SizeLimits {
    /// Maximum rows of a table, items of a list, lines of code.
    most: usize,
    /// Whether collapsed content and charts are included.
    folded: bool,
    /// Whether reference sections are included.
    reference: bool,
}

const ALL: SizeLimits = SizeLimits { most: usize::MAX, folded: true, reference: true };

/// Reference sections.
const REFERENCE: [&str; 4] = ["environment", "gpus", "processes", "matrix"];

/// The whole document.
pub(crate) fn render(document: &Document) -> String {
    render_in(document, ALL)
}

/// The document in at most `lines` lines: collapsed content is omitted first, then reference sections, then the ends of
/// long tables and lists, each with the number of omitted rows.
pub(crate) fn render_within(document: &Document, lines: usize) -> String {
    let brief = SizeLimits { folded: false, ..ALL };
    let cut = [usize::MAX, 60, 40, 24, 16, 10, 6, 4, 2, 1];
    let cut = cut.into_iter().map(|most| SizeLimits { most, folded: false, reference: false });
    let mut shortest = String::new();
    for limits in [ALL, brief].into_iter().chain(cut) {
        shortest = render_in(document, limits);
        if shortest.lines().count() <= lines {
            return shortest;
        }
    }
    let kept: Vec<&str> = shortest.lines().take(lines.saturating_sub(2)).collect();
    format!("{}\n\n*The rest is in [report.html](report.html).*\n", kept.join("\n"))
}

fn render_in(document: &Document, limits: SizeLimits) -> String {
    let mut out = String::new();
    line(&mut out, &format!("# firstlight: {}", escape::markdown(&document.title)));
    line(&mut out, &prose(&document.subtitle));
    if let Some((tone, words)) = &document.verdict {
        block(&mut out, &Block::Notice(*tone, words.clone()), limits);
    }
    if let Some((tone, words)) = &document.banner {
        block(&mut out, &Block::Notice(*tone, words.clone()), limits);
    }
    for section in &document.sections {
        line(
            &mut out,
            &format!("## <a id=\"{}\"></a>{}", section.id, escape::markdown(section.title)),
        );
        if !limits.reference && REFERENCE.contains(&section.id) {
            line(&mut out, &format!("In [report.html](report.html#{}).", section.id));
            continue;
        }
        for part in &section.blocks {
            block(&mut out, part, limits);
        }
    }
    out
}

/// A line and an empty line.
fn line(out: &mut String, words: &str) {
    out.push_str(words);
    out.push_str("\n\n");
}

fn block(out: &mut String, part: &Block, limits: SizeLimits) {
    match part {
        Block::Heading { id, words } => {
            line(out, &format!("### <a id=\"{id}\"></a>{}", prose(words)))
        }
        Block::Paragraph(words) => line(out, &prose(words)),
        Block::Notice(tone, words) => {
            // GitHub's alert syntax; other renderers show a block quote that starts with the word.
            let word = match tone {
                Tone::Bad => "CAUTION",
                Tone::Warn => "WARNING",
                Tone::Good | Tone::Plain => "NOTE",
            };
            line(out, &format!("> [!{word}]\n> {}", prose(words)));
        }
        Block::List(items) => {
            for item in items.iter().take(limits.most) {
                out.push_str(&format!("- {}\n", prose(item)));
            }
            more(out, items.len(), limits, "- ");
            out.push('\n');
        }
        Block::Code(lines) => {
            let longest =
                lines.iter().map(|text| escape::longest_run(text, '`')).max().unwrap_or(0);
            let fence = "`".repeat((longest + 1).max(3));
            let lines = lines.iter().take(limits.most.max(LEAST));
            let lines: Vec<String> = lines.map(|text| escape::terminal(text)).collect();
            line(out, &format!("{fence}text\n{}\n{fence}", lines.join("\n")));
        }
        Block::Table(content) => table(out, content, limits),
        Block::Tiles(tiles) => {
            for tile in tiles {
                let (value, label) = (escape::markdown(&tile.value), escape::markdown(&tile.label));
                out.push_str(&format!("- **{value}** {label} ({})\n", prose(&tile.source)));
            }
            out.push('\n');
        }
        Block::Figures(figures) if !limits.folded => {
            if let Some(first) = figures.first() {
                let link = format!("[report.html](report.html#{})", first.id);
                let words = if figures.len() == 1 { "picture" } else { "pictures" };
                line(out, &format!("{} {words}: in {link}.", figures.len()));
            }
        }
        Block::Figures(figures) => {
            for figure in figures {
                // GitHub shows no inline SVG; the chart is in the HTML page.
                let link = format!("[report.html](report.html#{})", figure.id);
                out.push_str(&format!("- Figure: {} Drawn in {link}.\n", prose(&figure.caption)));
            }
            out.push('\n');
        }
        Block::Details { summary, .. } if !limits.folded => {
            line(out, &format!("{}: in [report.html](report.html).", prose(summary)));
        }
        Block::Details { summary, blocks } => {
            line(out, &format!("<details><summary>{}</summary>", escape::html(&summary.plain())));
            for part in blocks {
                block(out, part, limits);
            }
            line(out, "</details>");
        }
        Block::Card { id, title, blocks, .. } => {
            line(out, &format!("### <a id=\"{id}\"></a>{}", prose(title)));
            for part in blocks {
                block(out, part, limits);
            }
        }
    }
}

/// Code blocks up to this length are not cut.
const LEAST: usize = 12;

/// Adds the number of omitted rows.
fn more(out: &mut String, all: usize, limits: SizeLimits, before: &str) {
    if all > limits.most {
        let left = all - limits.most;
        out.push_str(&format!(
            "{before}*{left} more: in the file named above, and in [report.html](report.html)*\n"
        ));
    }
}

fn table(out: &mut String, table: &Table, limits: SizeLimits) {
    line(out, &format!("*Table:* {}", prose(&table.caption)));
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    out.push_str(&row(table.columns.iter().map(|(head, _)| escape::markdown(head)).collect()));
    let rule = |align: &Align| if *align == Align::Right { "---:" } else { "---" }.to_owned();
    out.push_str(&row(table.columns.iter().map(|(_, align)| rule(align)).collect()));
    for cells in table.rows.iter().take(limits.most) {
        out.push_str(&row(cells.iter().map(prose).collect()));
    }
    // Without the empty line, the next line would be part of the table.
    if table.rows.len() > limits.most {
        out.push('\n');
    }
    more(out, table.rows.len(), limits, "");
    out.push('\n');
}

fn prose(words: &Prose) -> String {
    words.0.iter().map(inline).collect()
}

fn inline(piece: &Inline) -> String {
    match piece {
        Inline::Text(words) => escape::markdown(words),
        Inline::Strong(words) => format!("**{}**", escape::markdown(words)),
        Inline::Code(words) => escape::markdown_code(words),
        Inline::Link(words, target) => {
            let words = escape::markdown(words);
            match target {
                Target::File(path) => format!("[{words}]({})", escape::href(path)),
                Target::Anchor(id) => format!("[{words}](#{id})"),
                Target::Web(address) => match escape::web(address) {
                    Some(address) => format!("<{address}>"),
                    None => words,
                },
            }
        }
        Inline::Note(words) => format!("<br>{}", escape::markdown(words)),
        Inline::Chip(Tone::Bad, words) => format!("**{}**", escape::markdown(words)),
        Inline::Chip(_, words) => escape::markdown(words),
    }
}
