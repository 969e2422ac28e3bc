//! A document as GitHub-flavoured Markdown.

use crate::document::{Align, Block, Document, Inline, Prose, Table, Target, Tone};
use crate::escape;

/// The whole document.
pub(crate) fn render(document: &Document) -> String {
    let mut out = String::new();
    line(&mut out, &format!("# firstlight: {}", escape::markdown(&document.title)));
    line(&mut out, &prose(&document.subtitle));
    if let Some((tone, words)) = &document.banner {
        block(&mut out, &Block::Notice(*tone, words.clone()));
    }
    for section in &document.sections {
        line(
            &mut out,
            &format!("<a id=\"{}\"></a>\n\n## {}", section.id, escape::markdown(section.title)),
        );
        for part in &section.blocks {
            block(&mut out, part);
        }
    }
    out
}

/// A line followed by an empty one.
fn line(out: &mut String, words: &str) {
    out.push_str(words);
    out.push_str("\n\n");
}

fn block(out: &mut String, part: &Block) {
    match part {
        Block::Heading { id, words } => {
            line(out, &format!("<a id=\"{id}\"></a>\n\n### {}", prose(words)))
        }
        Block::Paragraph(words) => line(out, &prose(words)),
        Block::Notice(tone, words) => {
            // GitHub's alert syntax; elsewhere it is a block quote that starts with the word.
            let word = match tone {
                Tone::Bad => "CAUTION",
                Tone::Warn => "WARNING",
                Tone::Good | Tone::Plain => "NOTE",
            };
            line(out, &format!("> [!{word}]\n> {}", prose(words)));
        }
        Block::List(items) => {
            for item in items {
                out.push_str(&format!("- {}\n", prose(item)));
            }
            out.push('\n');
        }
        Block::Code(lines) => {
            let longest =
                lines.iter().map(|text| escape::longest_run(text, '`')).max().unwrap_or(0);
            let fence = "`".repeat((longest + 1).max(3));
            let lines: Vec<String> = lines.iter().map(|text| escape::terminal(text)).collect();
            line(out, &format!("{fence}text\n{}\n{fence}", lines.join("\n")));
        }
        Block::Table(content) => table(out, content),
        Block::Tiles(tiles) => {
            for tile in tiles {
                let (value, label) = (escape::markdown(&tile.value), escape::markdown(&tile.label));
                out.push_str(&format!("- **{value}** {label} ({})\n", prose(&tile.source)));
            }
            out.push('\n');
        }
        Block::Figures(figures) => {
            for figure in figures {
                // GitHub shows no inline SVG: the picture is in the page beside this file.
                let link = format!("[report.html](report.html#{})", figure.id);
                out.push_str(&format!("- Figure: {} Drawn in {link}.\n", prose(&figure.caption)));
            }
            out.push('\n');
        }
        Block::Details { summary, blocks } => {
            line(out, &format!("<details><summary>{}</summary>", escape::html(&summary.plain())));
            for part in blocks {
                block(out, part);
            }
            line(out, "</details>");
        }
        Block::Card { id, title, blocks, .. } => {
            line(out, &format!("<a id=\"{id}\"></a>\n\n### {}", prose(title)));
            for part in blocks {
                block(out, part);
            }
        }
    }
}

fn table(out: &mut String, table: &Table) {
    line(out, &format!("*Table:* {}", prose(&table.caption)));
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    out.push_str(&row(table.columns.iter().map(|(head, _)| escape::markdown(head)).collect()));
    let rule = |align: &Align| if *align == Align::Right { "---:" } else { "---" }.to_owned();
    out.push_str(&row(table.columns.iter().map(|(_, align)| rule(align)).collect()));
    for cells in &table.rows {
        out.push_str(&row(cells.iter().map(prose).collect()));
    }
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
        Inline::Chip(Tone::Bad, words) => format!("**{}**", escape::markdown(words)),
        Inline::Chip(_, words) => escape::markdown(words),
    }
}
