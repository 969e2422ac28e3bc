//! Converts tiktoken.model, which lists byte sequences by rank, to a tokenizer.json.

use facts::CompactSort;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Kimi's pre-tokenization pattern: o200k's with a run of Han characters first, Han excluded from the letter classes,
/// and line ends after punctuation.
pub(crate) const PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);
/// Number of special tokens after the ranks; those that tokenizer_config.json does not name are reserved.
const SPECIAL: usize = 256;

/// A tokenizer.json from ranks, with the special tokens that tokenizer_config.json names.
///
/// # Errors
/// One sentence naming the invalid line.
pub(crate) fn convert(ranks: &str, config: Option<&Value>) -> Result<Value, String> {
    let tokens = parse(ranks)?;
    let rank_of: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let alphabet = byte_alphabet();
    let spell =
        |bytes: &[u8]| bytes.iter().map(|byte| alphabet[usize::from(*byte)]).collect::<String>();
    let mut vocabulary = Map::new();
    let mut merges = Vec::new();
    for (rank, token) in tokens.iter().enumerate() {
        vocabulary.insert(spell(token), json!(rank));
        // tiktoken merges any adjacent tokens whose concatenation has a rank, lowest rank first, so every split of a
        // token into two is a merge with the token's rank.
        let mut cuts: Vec<(usize, usize, usize)> = (1..token.len())
            .filter_map(|at| Some((*rank_of.get(&token[..at])?, *rank_of.get(&token[at..])?, at)))
            .collect();
        cuts.compact_sort();
        merges.extend(
            cuts.iter().map(|(.., at)| json!([spell(&token[..*at]), spell(&token[*at..])])),
        );
    }
    let named = config.and_then(|config| config.get("added_tokens_decoder"));
    let special = (tokens.len()..tokens.len() + SPECIAL).map(|id| {
        let named = named.and_then(|named| named.get(id.to_string())?.get("content")?.as_str());
        let content = named.map_or_else(|| format!("<|reserved_token_{id}|>"), str::to_owned);
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    Ok(json!({
        "version": "1.0",
        "added_tokens": special.collect::<Vec<_>>(),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": PATTERN }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
        ] },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": true,
            "fuse_unk": false, "byte_fallback": false,
        },
    }))
}

/// Ranks of all single bytes: with them a random model can tokenize any text.
pub(crate) fn bytes_alone() -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u8| char::from(LETTERS[usize::from(bits)]);
    let line = |byte: u8| format!("{}{}== {byte}\n", letter(byte >> 2), letter((byte & 3) << 4));
    (0..=255).map(line).collect()
}

/// The byte sequences in order of their ranks, which are consecutive from 0.
fn parse(ranks: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut tokens = Vec::new();
    for (number, line) in ranks.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let parsed = line
            .split_once(' ')
            .and_then(|(bytes, rank)| Some((base64(bytes)?, rank.trim().parse::<usize>().ok()?)));
        match parsed {
            Some((bytes, rank)) if rank == tokens.len() && !bytes.is_empty() => tokens.push(bytes),
            _ => {
                let wanted = format!("expected bytes in base64 and the rank {}", tokens.len());
                return Err(format!("line {} is no rank, {wanted}", number + 1));
            }
        }
    }
    if tokens.is_empty() {
        return Err("has no ranks".to_owned());
    }
    Ok(tokens)
}

/// Decodes base64; `None` if it is invalid.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for letter in text.bytes() {
        let six = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, held) = ((bits << 6 | u32::from(six)) & 0xffff, held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

/// GPT-2's mapping of bytes to characters: printable ones map to themselves, the others to U+0100 and up.
pub(crate) fn byte_alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    })
}

/// The bytes of a token spelled in this alphabet; `None` if it contains another character.
pub(super) fn bytes_of(spelled: &str) -> Option<Vec<u8>> {
    static BYTES: LazyLock<HashMap<char, u8>> =
        LazyLock::new(|| byte_alphabet().into_iter().zip(0..=255).collect());
    spelled.chars().map(|c| BYTES.get(&c).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokenizer;

    /// All single bytes in ascending order, then longer tokens.
    fn ranks(longer: &[&str]) -> String {
        let line =
            |(at, token): (usize, &&str)| format!("{} {}\n", encode(token.as_bytes()), 256 + at);
        bytes_alone() + &longer.iter().enumerate().map(line).collect::<String>()
    }

    fn encode(bytes: &[u8]) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for three in bytes.chunks(3) {
            let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - three.len()));
            for place in 0..4 {
                let letter = char::from(LETTERS[(bits >> (18 - 6 * place) & 63) as usize]);
                text.push(if place <= three.len() { letter } else { '=' });
            }
        }
        text
    }

    fn tokenizer(longer: &[&str]) -> (tempfile::TempDir, Tokenizer) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tiktoken.model"), ranks(longer)).unwrap();
        let config = r#"{"added_tokens_decoder": {"264": {"content": "<|im_end|>"}}}"#;
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        let tokenizer = Tokenizer::read(folder.path()).unwrap();
        (folder, tokenizer)
    }

    const LONGER: [&str; 6] = ["he", "ll", "hell", "hello", " w", "中文"];

    #[test]
    fn tokenization_matches_tiktoken() {
        let (_folder, tokenizer) = tokenizer(&LONGER);
        let b = |byte: u8| u32::from(byte);
        for (text, want) in [
            // A piece that is a token is that token; otherwise adjacent tokens are merged, lowest rank first.
            ("hello", vec![259]),
            ("hells", vec![258, b(b's')]),
            ("hel", vec![256, b(b'l')]),
            // Words include their leading space, digits are split by three, Han characters are separate.
            ("hell w", vec![258, 260]),
            ("a中文b", vec![b(b'a'), 261, b(b'b')]),
            ("1234", [b'1', b'2', b'3', b'4'].map(b).to_vec()),
            ("a<|im_end|>", vec![b(b'a'), 264]),
            ("<|reserved_token_262|>", vec![262]),
        ] {
            assert_eq!(tokenizer.encode(text).unwrap(), want, "{text}");
        }
        assert_eq!(tokenizer.vocabulary(), 262 + SPECIAL);
        assert_eq!(tokenizer.id("<|im_end|>"), Some(264));
        // A token's own bytes, including parts of characters; special tokens are spelled out.
        let bytes = |id: u32| tokenizer.bytes(id).unwrap();
        assert_eq!((bytes(260), bytes(261)), (b" w".to_vec(), "中文".as_bytes().to_vec()));
        assert_eq!((bytes(0xe4), bytes(264)), (vec![0xe4], b"<|im_end|>".to_vec()));
        assert_eq!(tokenizer.bytes(999_999), None);
        assert_eq!(tokenizer.decode_with(&[b(b'a'), 264], true).unwrap(), "a<|im_end|>");
    }

    #[test]
    fn every_text_round_trips_in_whole_characters() {
        let (_folder, tokenizer) = tokenizer(&LONGER);
        for text in ["hello wörld\n\n", "中文English混合", "😀 x", "a\u{0}b"] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
            let mut stream = tokenizer.stream();
            let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
            assert_eq!(pieces.concat(), text);
            assert!(
                !pieces.iter().any(|piece| piece.contains(char::REPLACEMENT_CHARACTER)),
                "{text}"
            );
            assert_eq!(stream.finish().unwrap(), "");
        }
    }

    #[test]
    fn invalid_rank_names_its_line() {
        for (text, words) in [
            ("", "has no ranks"),
            ("IQ== 0\nIg== 2\n", "line 2 is no rank, expected bytes in base64 and the rank 1"),
            ("I? 0\n", "line 1 is no rank, expected bytes in base64 and the rank 0"),
        ] {
            assert_eq!(convert(text, None).unwrap_err(), words);
        }
    }
}
