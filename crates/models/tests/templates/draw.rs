//! Conversations generated from a seed, as JSON text with the same bytes for firstlight and transformers.

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// True with a probability in percent.
    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const WORDS: [&str; 24] = [
    "the",
    "GPU",
    "it's",
    "\"quoted\"",
    "naïve",
    "中文",
    "日本語",
    "emoji 😀",
    "a\nb",
    "tab\there",
    "{{ x }}",
    "{% if %}",
    "<b>&amp;</b>",
    "back\\slash",
    "'single'",
    "e\u{301}",
    "\u{a0}nbsp",
    "…",
    "0",
    "-1.5",
    "None",
    "</tool_call>",
    "\u{2028}",
    "\u{7f}",
];
const NAMES: [&str; 8] =
    ["get_weather", "items", "search.web", "add", "keys", "查询", "long_name_of_a_function", "get"];
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-7",
    "3.0",
    "0.1",
    "-0.0",
    "1e20",
    "1.5e-7",
    "123456789012345678",
    "1e16",
    "123456789.125",
    "1E5",
    "2.5",
    "18446744073709551615",
];

fn string(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn object(entries: &[(&str, String)]) -> String {
    let entries = entries.iter().map(|(key, value)| format!("{}: {value}", string(key)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
}

fn array(items: Vec<String>) -> String {
    format!("[{}]", items.join(","))
}

impl Draw {
    fn text(&mut self) -> String {
        let count = [0, 1, 2, 3, 5, 9][self.below(6)];
        let mut text: Vec<&str> = (0..count).map(|_| self.of(&WORDS)).collect();
        // Leading and trailing spaces are what templates strip.
        if self.percent(15) {
            text.insert(0, " \n");
        }
        if self.percent(15) {
            text.push("\n ");
        }
        text.join(" ")
    }

    fn json(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 5 } else { 8 }) {
            0 => self.of(&["true", "false", "null"]).to_owned(),
            1 | 2 => self.of(&NUMBERS).to_owned(),
            3 | 4 => string(&self.text()),
            5 => {
                let count = self.below(4);
                array((0..count).map(|_| self.json(depth - 1)).collect())
            }
            _ => self.arguments(depth - 1),
        }
    }

    fn arguments(&mut self, depth: usize) -> String {
        const KEYS: [&str; 7] = ["b", "a", "items", "Zürich", "z z", "values", "city"];
        let (first, count) = (self.below(KEYS.len()), self.below(5));
        let keys: Vec<&str> = (0..count).map(|at| KEYS[(first + 3 * at) % KEYS.len()]).collect();
        object(&keys.into_iter().map(|key| (key, self.json(depth))).collect::<Vec<_>>())
    }

    fn content(&mut self) -> String {
        if !self.percent(20) {
            return string(&self.text());
        }
        let count = 1 + self.below(3);
        let part = |draw: &mut Self| {
            if draw.percent(20) {
                let url = object(&[("url", string("data:image/png;base64,AA=="))]);
                return object(&[("type", string("image_url")), ("image_url", url)]);
            }
            object(&[("type", string("text")), ("text", string(&draw.text()))])
        };
        array((0..count).map(|_| part(self)).collect())
    }

    fn schema(&mut self) -> String {
        let property = |draw: &mut Self| {
            let kind = draw.of(&["string", "integer", "number", "boolean", "array", "object"]);
            let mut entries = vec![("type", string(kind)), ("description", string(&draw.text()))];
            if kind == "array" {
                entries.push(("items", object(&[("type", string("string"))])));
            }
            if draw.percent(30) {
                entries.push(("enum", array(vec![draw.json(0), draw.json(0)])));
            }
            if draw.percent(30) {
                entries.insert(0, ("default", draw.json(1)));
            }
            object(&entries)
        };
        let names = ["zone", "items", "a", "名"];
        let count = self.below(4);
        let properties: Vec<_> =
            names[..count].iter().map(|name| (*name, property(self))).collect();
        let required = array(names[..count.min(1)].iter().map(|name| string(name)).collect());
        let parameters = object(&[
            ("type", string("object")),
            ("properties", object(&properties)),
            ("required", required),
        ]);
        let function = object(&[
            ("name", string(self.of(&NAMES))),
            ("description", string(&self.text())),
            ("parameters", parameters),
        ]);
        object(&[("type", string("function")), ("function", function)])
    }

    fn calls(&mut self, ids: &mut Vec<String>) -> String {
        let count = 1 + self.below(3);
        let mut call = |draw: &mut Self| {
            let id = format!("functions.{}:{}", draw.of(&NAMES), ids.len());
            ids.push(id.clone());
            let arguments =
                if draw.percent(50) { draw.arguments(2) } else { string(&draw.arguments(1)) };
            let function = [("name", string(draw.of(&NAMES))), ("arguments", arguments)];
            if draw.percent(2) {
                return object(&function);
            }
            object(&[
                ("id", string(&id)),
                ("type", string("function")),
                ("function", object(&function)),
            ])
        };
        array((0..count).map(|_| call(self)).collect())
    }

    fn messages(&mut self, with_tools: bool) -> Vec<String> {
        let mut messages = Vec::new();
        let mut say = |entries: &[(&str, String)]| messages.push(object(entries));
        if self.percent(50) {
            say(&[("role", string("system")), ("content", self.content())]);
        }
        let turns = 1 + self.below(4);
        for turn in 0..turns {
            let mut user = vec![("role", string("user")), ("content", self.content())];
            if self.percent(10) {
                user.push(("name", string(self.of(&NAMES))));
            }
            say(&user);
            if with_tools && self.percent(70) {
                let mut ids = Vec::new();
                let calls = self.calls(&mut ids);
                let mut entries = vec![("role", string("assistant"))];
                match self.below(3) {
                    0 => entries.push(("content", "null".to_owned())),
                    1 => entries.push(("content", string(""))),
                    _ => entries.push(("content", string(&self.text()))),
                }
                if self.percent(30) {
                    entries.push(("reasoning_content", string(&self.text())));
                }
                entries.push(("tool_calls", calls));
                say(&entries);
                for id in &ids {
                    let content =
                        if self.percent(30) { string(&self.json(2)) } else { self.content() };
                    let mut entries = vec![("role", string("tool")), ("content", content)];
                    if self.percent(90) {
                        entries.insert(1, ("tool_call_id", string(id)));
                    }
                    if self.percent(40) {
                        entries.push(("name", string(self.of(&NAMES))));
                    }
                    say(&entries);
                }
            }
            // The last question is usually unanswered.
            if turn + 1 < turns || self.percent(30) {
                let mut entries = vec![("role", string("assistant")), ("content", self.content())];
                if self.percent(30) {
                    entries.push((
                        self.of(&["reasoning_content", "reasoning", "thinking"]),
                        string(&self.text()),
                    ));
                }
                if self.percent(10) {
                    entries.push(("tool_calls", self.of(&["null", "[]"]).to_owned()));
                }
                say(&entries);
            }
            if self.percent(3) {
                say(&[("role", string("system")), ("content", self.content())]);
            }
        }
        messages
    }

    fn conversation(&mut self) -> String {
        let with_tools = self.percent(50);
        let mut entries = vec![("messages", array(self.messages(with_tools)))];
        if with_tools {
            let count = self.below(4);
            entries.push(("tools", array((0..count).map(|_| self.schema()).collect())));
        }
        if self.percent(25) {
            let count = self.below(3);
            let document = |draw: &mut Self| {
                object(&[
                    ("doc_id", draw.of(&NUMBERS).to_owned()),
                    ("title", string(&draw.text())),
                    ("text", string(&draw.text())),
                ])
            };
            entries.push(("documents", array((0..count).map(|_| document(self)).collect())));
        }
        let mut kwargs = Vec::new();
        for key in ["thinking", "enable_thinking"] {
            if self.percent(30) {
                kwargs.push((key, self.of(&["true", "false"]).to_owned()));
            }
        }
        if self.percent(10) {
            kwargs.push(("available_tools", array(vec![self.schema()])));
        }
        entries.push(("kwargs", object(&kwargs)));
        entries.push((
            "add_generation_prompt",
            self.of(&["true", "true", "true", "false"]).to_owned(),
        ));
        object(&entries)
    }
}

/// `count` conversations.
pub(crate) fn conversations(seed: u64, count: usize) -> Vec<String> {
    let mut draw = Draw(seed);
    (0..count).map(|_| draw.conversation()).collect()
}
