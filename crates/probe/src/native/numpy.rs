//! The messages that NumPy's headers compile into every file that imports NumPy's C API (`import_array`).

use facts::NumpyApi;

/// In all headers since NumPy 1.4.
const ABI: &[u8] = b"module compiled against ABI version 0x";
/// Searched first by NumPy 2's headers.
const NEW_NAME: &[u8] = b"numpy._core";
/// NumPy 2's headers contain the oldest NumPy with all functions that the file may call.
const LEAST: &[u8] = b"module was compiled against NumPy C-API version 0x%x (NumPy ";

/// Parses the constants of a file; `None` if it does not import the API.
pub(super) fn read(constants: &[u8]) -> Option<NumpyApi> {
    find(constants, ABI)?;
    let least = find(constants, LEAST).and_then(|at| {
        let rest = &constants[at + LEAST.len()..];
        let end = rest.iter().take(12).position(|byte| *byte == b')')?;
        std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
    });
    Some(NumpyApi { before_2: least.is_none() && find(constants, NEW_NAME).is_none(), least })
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = haystack.get(from..)?.iter().position(|byte| *byte == needle[0]) {
        let start = from + at;
        if haystack[start..].starts_with(needle) {
            return Some(start);
        }
        from = start + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn numpy_abi_of_scipy_and_numpy_modules() {
        let check = |constants: &str, expect: Option<(bool, Option<&str>)>| {
            let got = read(constants.as_bytes());
            let got = got.as_ref().map(|it| (it.before_2, it.least.as_deref()));
            assert_eq!(got, expect, "{constants}");
        };
        let abi = "module compiled against ABI version 0x%x but this version of numpy is 0x%x\0";
        let old =
            "module compiled against API version 0x%x but this version of numpy is 0x%x . Check\0";
        let new = "module was compiled against NumPy C-API version 0x%x (NumPy 1.25) but the running NumPy has\0";
        // scipy 1.11.4's _fblas, then numpy 2.5.5's mtrand.
        check(&format!("numpy.core._multiarray_umath\0{abi}{old}"), Some((true, None)));
        check(
            &format!("numpy._core._multiarray_umath\0numpy.core._multiarray_umath\0{abi}{new}"),
            Some((false, Some("1.25"))),
        );
        // scipy's pypocketfft, by pybind11, which looks up the API when it is called.
        check("numpy.core.multiarray\0_ARRAY_API\0", None);
        check("", None);
    }
}
