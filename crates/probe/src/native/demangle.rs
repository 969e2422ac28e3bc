//! Demangles C++ names.

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use std::fmt;

/// Longer symbols are not demangled: real template names have a few thousand characters.
const MAX_SYMBOL: usize = 8 << 10;
/// Longer names are truncated.
const MAX_NAME: usize = 400;

/// The C++ name of a symbol; `None` for other symbols.
pub(crate) fn demangle(symbol: &str) -> Option<String> {
    if !symbol.starts_with("_Z") || symbol.len() > MAX_SYMBOL {
        return None;
    }
    let parse = ParseOptions::default().recursion_limit(96);
    let parsed = Symbol::new_with_options(symbol.as_bytes(), &parse).ok()?;
    let mut name = Bounded::default();
    // Back references can expand a short symbol to gigabytes; the writer stops at the limit.
    match parsed.structured_demangle(&mut name, &DemangleOptions::new().recursion_limit(96)) {
        Ok(()) => Some(name.0),
        Err(_) if name.0.len() >= MAX_NAME => Some(name.0 + "..."),
        Err(_) => None,
    }
}

/// The prefix of a symbol that all its overloads share: scope and name, without the arguments.
pub(crate) fn overloads(symbol: &str) -> Option<&str> {
    let rest = symbol.strip_prefix("_Z")?;
    let nested = rest.strip_prefix('N');
    let mut rest = nested.unwrap_or(rest).trim_start_matches(['K', 'V', 'r']);
    let mut last = None;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            break;
        }
        let length: usize = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits.checked_add(length)?..)?;
        last = Some(rest);
        if nested.is_none() {
            break;
        }
    }
    // Names of constructors and destructors are `C` or `D` and a digit; operators are two lower-case characters.
    let special = rest.as_bytes();
    let after = match special {
        [b'C' | b'D', b'0'..=b'5', ..] => rest.get(2..)?,
        [a, b, ..] if nested.is_some() && a.is_ascii_lowercase() && b.is_ascii_lowercase() => {
            rest.get(2..)?
        }
        _ => last?,
    };
    // `E` ends the scope, so that `ErrorAlwaysShowCppStacktrace` does not count as an overload of `Error`.
    let end = symbol.len() - after.len() + usize::from(after.starts_with(['E', 'I']));
    symbol.get(..end)
}

#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MAX_NAME.saturating_sub(self.0.len());
        let cut = (0..=left.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        self.0.push_str(&text[..cut.unwrap_or(0)]);
        if text.len() > left { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{demangle, overloads};

    #[test]
    fn demangles_names_of_torch() {
        let check = |symbol, expect| assert_eq!(demangle(symbol).as_deref(), expect, "{symbol}");
        check("_ZN3c104cuda9SetDeviceEab", Some("c10::cuda::SetDevice(signed char, bool)"));
        check(
            "_ZN3c105ErrorC2ENS_14SourceLocationESs",
            Some("c10::Error::Error(c10::SourceLocation, std::string)"),
        );
        check(
            "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            Some(
                "c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >)",
            ),
        );
        check("cudaMalloc", None);
        check("_Z", None);
        check("_ZN3c10", None);
    }

    #[test]
    fn overloads_share_scope_and_name() {
        let check = |symbol, expect| assert_eq!(overloads(symbol), expect, "{symbol}");
        check("_ZN3c104cuda9SetDeviceEi", Some("_ZN3c104cuda9SetDeviceE"));
        check("_ZN3c105ErrorC2ENS_14SourceLocationESs", Some("_ZN3c105ErrorC2E"));
        check("_ZNK2at10TensorBase8data_ptrIfEEPT_v", Some("_ZNK2at10TensorBase8data_ptrI"));
        check("_ZN3c108toStringB5cxx11ENS_10ScalarTypeE", Some("_ZN3c108toString"));
        check("_ZN3c10lsERSoNS_6DeviceE", Some("_ZN3c10lsE"));
        check("_Z10launch_fwdPfi", Some("_Z10launch_fwd"));
        check("_ZTVN3c105ErrorE", None);
        check("_ZN99999999999999999999x", None);
        check("_ZN9x", None);
    }

    #[test]
    fn exponential_expansion_is_truncated() {
        // Each level repeats the previous one twice.
        let mut symbol = String::from("_Z1fI1aE");
        for _ in 0..60 {
            symbol.push_str("3fooIS_S_E");
        }
        assert!(demangle(&symbol).is_none_or(|name| name.len() <= 410));
    }
}
