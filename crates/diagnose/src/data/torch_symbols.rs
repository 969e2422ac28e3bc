//! Functions of torch's C++ interface whose signature changed between releases, and the releases that export each one.

use knowledge::{Citation, Minor, dotted};

/// One symbol and the torch series that export it.
#[derive(Debug)]
pub(crate) struct Row {
    symbol: &'static str,
    /// First series; `None` if the oldest wheel that was read exports it.
    from: Option<Minor>,
    /// Last series; `None` if the newest wheel that was read exports it.
    to: Option<Minor>,
}

/// The oldest and the newest torch series whose wheels were read.
const READ: (Minor, Minor) = ((2, 1), (2, 15));

/// The source of the rows.
pub(crate) const SOURCE: Citation = Citation::of(
    "exports of libc10.so and libc10_cuda.so in PyPI's x86-64 wheels of torch 2.1.2 to 2.15.0",
    "2026-11-21",
);

const fn row(symbol: &'static str, from: Option<Minor>, to: Option<Minor>) -> Row {
    Row { symbol, from, to }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("_ZN3c1018ThrowEnforceNotMetEPKciS1_RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPKv", Some((2, 7)), None),
    row("_ZN3c1018ThrowEnforceNotMetEPKciS1_RKSsPKv", None, Some((2, 6))),
    row("_ZN3c104cuda14ExchangeDeviceEa", Some((2, 3)), None),
    row("_ZN3c104cuda14ExchangeDeviceEi", None, Some((2, 2))),
    row("_ZN3c104cuda14MaybeSetDeviceEa", Some((2, 3)), None),
    row("_ZN3c104cuda14MaybeSetDeviceEi", None, Some((2, 2))),
    row("_ZN3c104cuda19MaybeExchangeDeviceEa", Some((2, 3)), None),
    row("_ZN3c104cuda19MaybeExchangeDeviceEi", None, Some((2, 2))),
    row("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", None, Some((2, 9))),
    row("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb", Some((2, 10)), Some((2, 13))),
    row("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jbPNS0_19CUDAErrorLogCaptureE", Some((2, 14)), None),
    row("_ZN3c104cuda9GetDeviceEPa", Some((2, 3)), None),
    row("_ZN3c104cuda9GetDeviceEPi", None, Some((2, 2))),
    row("_ZN3c104cuda9SetDeviceEa", Some((2, 3)), Some((2, 7))),
    row("_ZN3c104cuda9SetDeviceEab", Some((2, 8)), None),
    row("_ZN3c104cuda9SetDeviceEi", None, Some((2, 2))),
    row("_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", Some((2, 7)), None),
    row("_ZN3c105ErrorC2ENS_14SourceLocationESs", None, Some((2, 6))),
    row("_ZN3c105ErrorC2ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt10shared_ptrIKNS_9LazyValueIS6_EEEPKv", Some((2, 7)), None),
    row("_ZN3c105ErrorC2EPKcjS2_RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt10shared_ptrIKNS_9LazyValueIS8_EEEPKv", Some((2, 7)), None),
    row("_ZN3c105ErrorC2EPKcjS2_RKSsS4_PKv", None, Some((2, 3))),
    row("_ZN3c105ErrorC2EPKcjS2_RKSsSt10shared_ptrIKNS_9LazyValueISsEEEPKv", Some((2, 4)), Some((2, 6))),
    row("_ZN3c105ErrorC2ESsSsPKv", None, Some((2, 3))),
    row("_ZN3c105ErrorC2ESsSt10shared_ptrIKNS_9LazyValueISsEEEPKv", Some((2, 4)), Some((2, 6))),
    row("_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", Some((2, 7)), None),
    row("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", None, Some((2, 6))),
    row("_ZN3c106detail23torchInternalAssertFailEPKcS2_jS2_RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", Some((2, 7)), None),
    row("_ZN3c106detail23torchInternalAssertFailEPKcS2_jS2_RKSs", None, Some((2, 6))),
    row("_ZN3c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEENS_14SourceLocationENS_6detail22CompileTimeEmptyStringEb", None, Some((2, 1))),
    row("_ZN3c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEENS_14SourceLocationEPKcb", None, Some((2, 1))),
    row("_ZN3c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEERKNS_14SourceLocationESsb", None, Some((2, 1))),
    row("_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEENS_14SourceLocationENS_6detail22CompileTimeEmptyStringEb", Some((2, 2)), None),
    row("_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEENS_14SourceLocationEPKcb", Some((2, 2)), None),
    row("_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEb", Some((2, 7)), None),
    row("_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationESsb", Some((2, 2)), Some((2, 6))),
    row("_ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv", Some((2, 6)), None),
];

impl Row {
    /// The releases as text: `torch 2.3 to 2.7`.
    pub(crate) fn words(&self) -> String {
        match (self.from, self.to) {
            (Some(from), Some(to)) if from == to => format!("torch {}", dotted(from)),
            (Some(from), Some(to)) => format!("torch {} to {}", dotted(from), dotted(to)),
            (Some(from), None) => {
                format!("torch {} and newer, up to {}", dotted(from), dotted(READ.1))
            }
            (None, Some(to)) => {
                format!("torch {} and older, down to {}", dotted(to), dotted(READ.0))
            }
            (None, None) => format!("torch {} to {}", dotted(READ.0), dotted(READ.1)),
        }
    }
}

/// The releases that export a symbol; `None` if the table does not have it. A constructor has two symbols (C1 and C2).
pub(crate) fn exporters(symbol: &str) -> Option<&'static Row> {
    let same = |row: &&Row| row.symbol == symbol || row.symbol == symbol.replacen("C1E", "C2E", 1);
    ROWS.iter().find(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_cited_and_sorted() {
        assert_eq!(SOURCE.check(), Ok(()));
        assert!(ROWS.windows(2).all(|pair| pair[0].symbol < pair[1].symbol));
        for row in ROWS {
            assert!(row.from.is_some() || row.to.is_some(), "{} has no bound", row.symbol);
            let (from, to) = (row.from.unwrap_or(READ.0), row.to.unwrap_or(READ.1));
            assert!(READ.0 <= from && from <= to && to <= READ.1, "{}", row.symbol);
        }
    }

    #[test]
    fn exporters_are_the_releases_of_a_symbol() {
        let check = |symbol, expect: Option<&str>| {
            assert_eq!(exporters(symbol).map(Row::words).as_deref(), expect, "{symbol}");
        };
        check("_ZN3c104cuda9SetDeviceEi", Some("torch 2.2 and older, down to 2.1"));
        check("_ZN3c104cuda9SetDeviceEa", Some("torch 2.3 to 2.7"));
        check("_ZN3c104cuda9SetDeviceEab", Some("torch 2.8 and newer, up to 2.15"));
        check("_ZN3c105ErrorC1ENS_14SourceLocationESs", Some("torch 2.6 and older, down to 2.1"));
        check("_ZN3c104cuda9SetDeviceEv", None);
    }
}
