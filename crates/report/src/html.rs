//! A document as one HTML page: inline style and charts, no script, no requests.

use crate::document::{Align, Block, Document, Figure, Inline, Prose, Table, Target, Tile, Tone};
use crate::escape;

const STYLE: &str = include_str!("html/page.css");
/// Characters of code above which a table may wrap it.
const LONG_CODE: usize = 44;
const MARK: &str = include_str!("html/mark.svg");

/// The whole page.
pub(crate) fn render(document: &Document) -> String {
    let mut out = String::with_capacity(64 << 10);
    let title = escape::html(&document.title);
    out.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    // A Content-Security-Policy: browsers refuse any request.
    out.push_str(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n",
    );
    out.push_str("<meta name=\"referrer\" content=\"no-referrer\">\n");
    out.push_str(&format!(
        "<title>{title} · firstlight</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    ));
    out.push_str("<a class=\"skip\" href=\"#content\">Skip to the report</a>\n");
    out.push_str(&format!(
        "<header class=\"masthead\"><div class=\"mark\">{}<span>firstlight</span></div>\n<h1>{title}</h1>\n<p class=\"subtitle\">{}</p>\n",
        MARK.trim(),
        prose(&document.subtitle)
    ));
    if let Some((tone, words)) = &document.verdict {
        out.push_str(&format!("<p class=\"verdict {}\">{}</p>\n", class(*tone), prose(words)));
    }
    out.push_str("</header>\n");
    out.push_str("<div class=\"page\">\n<nav aria-label=\"Sections\"><ul>\n");
    for section in &document.sections {
        out.push_str(&format!(
            "<li><a href=\"#{}\">{}</a></li>\n",
            section.id,
            escape::html(section.title)
        ));
    }
    out.push_str("</ul></nav>\n<main id=\"content\">\n");
    if let Some((tone, words)) = &document.banner {
        out.push_str(&format!(
            "<p class=\"notice banner {}\" role=\"status\">{}</p>\n",
            class(*tone),
            prose(words)
        ));
    }
    for section in &document.sections {
        out.push_str(&format!(
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{}</h2>\n",
            escape::html(section.title),
            id = section.id
        ));
        blocks(&mut out, &section.blocks);
        out.push_str("</section>\n");
    }
    out.push_str("</main>\n</div>\n</body>\n</html>\n");
    out
}

fn blocks(out: &mut String, parts: &[Block]) {
    for part in parts {
        block(out, part);
    }
}

fn block(out: &mut String, part: &Block) {
    match part {
        Block::Heading { id, words } => {
            out.push_str(&format!("<h3 id=\"{id}\">{}</h3>\n", prose(words)))
        }
        Block::Paragraph(words) => out.push_str(&format!("<p>{}</p>\n", prose(words))),
        Block::Notice(tone, words) => {
            out.push_str(&format!("<p class=\"notice {}\">{}</p>\n", class(*tone), prose(words)));
        }
        Block::List(items) => {
            out.push_str("<ul>\n");
            for item in items {
                out.push_str(&format!("<li>{}</li>\n", prose(item)));
            }
            out.push_str("</ul>\n");
        }
        Block::Code(lines) => {
            let lines: Vec<String> = lines.iter().map(|text| escape::html(text)).collect();
            out.push_str(&format!("<pre tabindex=\"0\"><code>{}</code></pre>\n", lines.join("\n")));
        }
        Block::Table(content) => table(out, content),
        Block::Tiles(content) => {
            out.push_str("<ul class=\"tiles\">\n");
            content.iter().for_each(|content| tile(out, content));
            out.push_str("</ul>\n");
        }
        Block::Figures(content) => {
            out.push_str("<div class=\"figures\">\n");
            content.iter().for_each(|content| figure(out, content));
            out.push_str("</div>\n");
        }
        Block::Details { summary, blocks: inner } => {
            out.push_str(&format!("<details>\n<summary>{}</summary>\n", prose(summary)));
            blocks(out, inner);
            out.push_str("</details>\n");
        }
        Block::Card { tone, id, title, blocks: inner } => {
            out.push_str(&format!(
                "<article class=\"card {}\" id=\"{id}\">\n<h3>{}</h3>\n",
                class(*tone),
                prose(title)
            ));
            blocks(out, inner);
            out.push_str("</article>\n");
        }
    }
}

/// A table in a box with its own scrollbar, so that the page does not scroll sideways; the box can have the keyboard
/// focus.
fn table(out: &mut String, table: &Table) {
    let label = escape::html(&table.caption.plain());
    out.push_str(&format!(
        "<figure class=\"table\">\n<figcaption>{}</figcaption>\n",
        prose(&table.caption)
    ));
    out.push_str(&format!("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{label}\"><table{}>\n<thead><tr>", if table.narrow { " class=\"narrow\"" } else { "" }));
    for (head, align) in &table.columns {
        out.push_str(&format!(
            "<th scope=\"col\"{}>{}</th>",
            align_class(*align),
            escape::html(head)
        ));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (cell, (_, align)) in row.iter().zip(&table.columns) {
            out.push_str(&format!("<td{}>{}</td>", cell_class(*align, cell), prose(cell)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n</figure>\n");
}

fn align_class(align: Align) -> &'static str {
    match align {
        Align::Left => "",
        Align::Right => " class=\"n\"",
    }
}

/// Text columns have a width in proportion to their text, so that a narrow screen scrolls instead of wrapping every
/// word.
fn cell_class(align: Align, cell: &Prose) -> &'static str {
    match (align, cell.plain().chars().count()) {
        // A number is not wrapped at its hyphen: 2.4e-3.
        (Align::Right, 0..=10) => " class=\"n one\"",
        (Align::Right, _) => align_class(align),
        (Align::Left, 0..=12) => "",
        (Align::Left, 13..=26) => " class=\"w1\"",
        (Align::Left, _) => " class=\"w2\"",
    }
}

fn tile(out: &mut String, tile: &Tile) {
    out.push_str(&format!(
        "<li class=\"{}\"><strong>{}</strong><span>{}</span><small>{}</small></li>\n",
        class(tile.tone),
        escape::html(&tile.value),
        escape::html(&tile.label),
        prose(&tile.source)
    ));
}

fn figure(out: &mut String, figure: &Figure) {
    out.push_str(&format!(
        "<figure class=\"plot\" id=\"{}\">\n{}\n<figcaption>{}</figcaption>\n</figure>\n",
        figure.id,
        figure.svg,
        prose(&figure.caption)
    ));
}

fn prose(words: &Prose) -> String {
    words.0.iter().map(inline).collect()
}

fn inline(piece: &Inline) -> String {
    match piece {
        Inline::Text(words) => escape::html(words),
        Inline::Strong(words) => format!("<strong>{}</strong>", escape::html(words)),
        // Short names are not wrapped in a table; a path or a hash may be wrapped anywhere.
        Inline::Code(words) if words.chars().count() > LONG_CODE => {
            format!("<code class=\"long\">{}</code>", escape::html(words))
        }
        Inline::Code(words) => format!("<code>{}</code>", escape::html(words)),
        Inline::Note(words) => format!("<small>{}</small>", escape::html(words)),
        Inline::Chip(tone, words) => {
            format!("<span class=\"chip {}\">{}</span>", class(*tone), escape::html(words))
        }
        Inline::Link(words, target) => {
            let words = escape::html(words);
            match target {
                Target::File(path) => format!(
                    "<a class=\"file\" href=\"{}\">{words}</a>",
                    escape::html(&escape::href(path))
                ),
                Target::Anchor(id) => format!("<a href=\"#{id}\">{words}</a>"),
                Target::Web(address) => match escape::web(address) {
                    Some(address) => {
                        format!(
                            "<a rel=\"noopener noreferrer\" href=\"{}\">{words}</a>",
                            escape::html(address)
                        )
                    }
                    None => words,
                },
            }
        }
    }
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Warn => "warn",
        Tone::Plain => "plain",
    }
}
