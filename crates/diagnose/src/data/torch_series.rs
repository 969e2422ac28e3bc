//! What goes with each torch series: Python, torchvision, torchaudio, triton.
//!
//! The rules read the pins in the installed METADATA first; this table answers only where METADATA has none, and it
//! chooses versions for remedies.

use super::Source;
use crate::version::{Minor, dotted};

/// Which series of a package fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fits {
    /// This series alone.
    Series(Minor),
    /// This series and every later one: the package is built against torch's stable ABI.
    From(Minor),
}

impl Fits {
    /// Whether a series fits.
    pub(crate) fn allows(self, series: Minor) -> bool {
        match self {
            Self::Series(wanted) => series == wanted,
            Self::From(first) => series >= first,
        }
    }

    /// What to write after a package's name: `==0.20.*`.
    pub(crate) fn constraint(self) -> String {
        match self {
            Self::Series(series) => format!("=={}.*", dotted(series)),
            Self::From(first) => format!(">={}", dotted(first)),
        }
    }
}

/// One torch series and its companions.
#[derive(Debug)]
pub(crate) struct Series {
    /// torch: major and minor number.
    pub(crate) torch: Minor,
    /// Oldest and newest Python with a wheel.
    pub(crate) python: (Minor, Minor),
    /// torchvision.
    pub(crate) torchvision: Fits,
    /// torchaudio.
    pub(crate) torchaudio: Fits,
    /// triton series pinned by the CUDA wheels.
    pub(crate) triton: Minor,
    /// Where it was read.
    pub(crate) source: Source,
}

const VISION_README: Source = Source {
    what: "torchvision README and torchaudio installation page, compatibility tables; torch METADATA for triton",
    date: "2026-11-21",
};
const METADATA: Source = Source {
    what: "METADATA of the torch and torchvision wheels on PyPI; torchaudio 2.11 installation page",
    date: "2026-11-21",
};

const fn row(
    torch: u32,
    python: (u32, u32),
    torchvision: Fits,
    torchaudio: Fits,
    triton: Minor,
    source: Source,
) -> Series {
    Series {
        torch: (2, torch),
        python: ((3, python.0), (3, python.1)),
        torchvision,
        torchaudio,
        triton,
        source,
    }
}

/// Every series, oldest first.
#[rustfmt::skip]
pub(crate) const SERIES: &[Series] = &[
    row(1, (8, 11), Fits::Series((0, 16)), Fits::Series((2, 1)), (2, 1), VISION_README),
    row(2, (8, 12), Fits::Series((0, 17)), Fits::Series((2, 2)), (2, 2), VISION_README),
    row(3, (8, 12), Fits::Series((0, 18)), Fits::Series((2, 3)), (2, 3), VISION_README),
    row(4, (8, 12), Fits::Series((0, 19)), Fits::Series((2, 4)), (3, 0), VISION_README),
    row(5, (9, 12), Fits::Series((0, 20)), Fits::Series((2, 5)), (3, 1), VISION_README),
    row(6, (9, 13), Fits::Series((0, 21)), Fits::Series((2, 6)), (3, 2), VISION_README),
    row(7, (9, 13), Fits::Series((0, 22)), Fits::Series((2, 7)), (3, 3), VISION_README),
    row(8, (9, 13), Fits::Series((0, 23)), Fits::Series((2, 8)), (3, 4), VISION_README),
    row(9, (10, 14), Fits::Series((0, 24)), Fits::Series((2, 9)), (3, 5), VISION_README),
    row(10, (10, 14), Fits::Series((0, 25)), Fits::Series((2, 10)), (3, 6), METADATA),
    row(11, (10, 14), Fits::Series((0, 26)), Fits::From((2, 11)), (3, 6), METADATA),
    row(12, (10, 14), Fits::Series((0, 27)), Fits::From((2, 11)), (3, 7), METADATA),
    row(13, (10, 14), Fits::Series((0, 28)), Fits::From((2, 11)), (3, 7), METADATA),
    row(14, (10, 14), Fits::From((0, 29)), Fits::From((2, 11)), (3, 8), METADATA),
    row(15, (11, 15), Fits::From((0, 29)), Fits::From((2, 11)), (3, 9), METADATA),
];

/// The row of a torch series.
pub(crate) fn series(torch: Minor) -> Option<&'static Series> {
    SERIES.iter().find(|row| row.torch == torch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::torch_builds::BUILDS;

    #[test]
    fn rows_rise_cite_and_cover_every_published_build() {
        for row in SERIES {
            crate::data::assert_cited(&row.source);
            assert!(row.python.0 < row.python.1, "{row:?}");
        }
        assert!(SERIES.windows(2).all(|pair| pair[0].torch < pair[1].torch));
        for build in BUILDS {
            for torch in build.torch {
                assert!(series(*torch).is_some(), "no row for torch {torch:?}");
            }
        }
        for row in SERIES {
            assert!(BUILDS.iter().any(|build| build.torch.contains(&row.torch)), "{row:?}");
        }
    }

    #[test]
    fn companions() {
        let row = series((2, 5)).expect("2.5");
        assert_eq!(row.torchvision.constraint(), "==0.20.*");
        assert!(row.torchvision.allows((0, 20)) && !row.torchvision.allows((0, 21)));
        let row = series((2, 15)).expect("2.15");
        assert_eq!(row.torchvision.constraint(), ">=0.29");
        assert!(row.torchvision.allows((0, 30)) && !row.torchvision.allows((0, 28)));
        assert_eq!(series((1, 13)).map(|row| row.torch), None);
    }
}
