/// Removes the samples, which only tests read, from a table of messages: each pair in `texts` keeps its pattern.
fn without_samples(table: &str) -> String {
    let mut out = String::with_capacity(table.len());
    let mut rest = table;
    while let Some((before, list)) = rest.split_once("\ntexts = [") {
        out.push_str(before);
        out.push_str("\ntexts = [");
        rest = strip_list(list, &mut out);
    }
    out.push_str(rest);
    out
}

/// Copies a list of pairs up to its closing bracket, with only the first string of each; returns the text after it.
fn strip_list<'a>(list: &'a str, out: &mut String) -> &'a str {
    let (mut depth, mut strings, mut quoted, mut escaped) = (1_u32, 0_u32, false, false);
    for (at, letter) in list.char_indices() {
        let sample = depth == 2 && strings > 1;
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => {
                quoted = !quoted;
                strings += u32::from(quoted);
            }
            '[' if !quoted => (depth, strings) = (depth + 1, 0),
            ']' if !quoted => depth -= 1,
            _ => {}
        }
        // The comma after a pattern and the sample that begins with this letter.
        let separates = depth == 2 && !quoted && strings >= 1 && letter != '"' && letter != '[';
        let begins = depth == 2 && quoted && strings > 1;
        let closes = letter == ']' && !quoted;
        if closes || !(sample || separates || begins) {
            out.push(letter);
        }
        if depth == 0 {
            return &list[at + letter.len_utf8()..];
        }
    }
    ""
}
