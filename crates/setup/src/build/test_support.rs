//! A recipe for tests.

use facts::BuildRecipe;

/// ffpa-attn, with these build tools and system requirements.
pub(super) fn recipe(build_requires: &[&str], system_requires: &[&str]) -> BuildRecipe {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    BuildRecipe {
        requirement: "ffpa-attn==0.0.2.1".into(),
        env: Vec::new(),
        build_requires: words(build_requires),
        requires: Vec::new(),
        system_requires: words(system_requires),
        minutes: (2, 10),
        job_bytes: 5 << 30,
        source: "test".into(),
    }
}
