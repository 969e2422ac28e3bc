//! Rules for the tokens of an answer that are independent of grammars.

use models::Guide;

/// Allowed tokens and the minimum length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenRules {
    /// Number of tokens before one of the request's stop tokens is allowed.
    pub min_tokens: usize,
    /// The only allowed tokens; empty allows all.
    pub allowed: Vec<u32>,
}

impl TokenRules {
    /// Whether the rules allow every token at every position.
    fn allows_all(&self) -> bool {
        self.min_tokens == 0 && self.allowed.is_empty()
    }

    /// Combines these rules with another guide. If both together allow no token, the other guide's mask is used.
    pub(crate) fn guide(
        self,
        stop_ids: &[u32],
        inner: Option<Box<dyn Guide>>,
    ) -> Option<Box<dyn Guide>> {
        match self.allows_all() {
            true => inner,
            false => Some(Box::new(RulesGuide {
                rules: self,
                stop_ids: stop_ids.to_vec(),
                sampled: 0,
                inner,
            })),
        }
    }
}

struct RulesGuide {
    rules: TokenRules,
    stop_ids: Vec<u32>,
    /// Tokens sampled so far.
    sampled: usize,
    inner: Option<Box<dyn Guide>>,
}

impl Guide for RulesGuide {
    fn mask(&mut self, allowed: &mut [u32]) {
        if let Some(inner) = &mut self.inner {
            inner.mask(allowed);
        }
        let mut mask = allowed.to_vec();
        if !self.rules.allowed.is_empty() {
            let mut only = vec![0; mask.len()];
            for token in &self.rules.allowed {
                if let Some(word) = only.get_mut(*token as usize / 32) {
                    *word |= 1 << (token % 32);
                }
            }
            mask.iter_mut().zip(only).for_each(|(word, only)| *word &= only);
        }
        let early = self.sampled < self.rules.min_tokens;
        for token in self.stop_ids.iter().filter(|_| early) {
            if let Some(word) = mask.get_mut(*token as usize / 32) {
                *word &= !(1 << (token % 32));
            }
        }
        if mask.iter().any(|word| *word != 0) {
            allowed.copy_from_slice(&mask);
        }
    }

    fn take(&mut self, token: u32) -> bool {
        self.sampled += 1;
        self.inner.as_mut().is_some_and(|inner| inner.take(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guide that allows one token.
    struct SingleTokenGuide(u32);

    impl Guide for SingleTokenGuide {
        fn mask(&mut self, allowed: &mut [u32]) {
            allowed.fill(0);
            allowed[self.0 as usize / 32] = 1 << (self.0 % 32);
        }

        fn take(&mut self, _: u32) -> bool {
            true
        }
    }

    fn tokens(guide: &mut dyn Guide) -> Vec<u32> {
        let mut mask = [u32::MAX; 2];
        guide.mask(&mut mask);
        (0..64).filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1).collect()
    }

    #[test]
    fn stop_tokens_are_masked_before_min_tokens() {
        let rules = TokenRules { min_tokens: 2, ..TokenRules::default() };
        let mut guide = rules.guide(&[7, 40], None).unwrap();
        for _ in 0..2 {
            let now = tokens(&mut *guide);
            assert!(now.len() == 62 && !now.contains(&7) && !now.contains(&40));
            assert!(!guide.take(1));
        }
        assert_eq!(tokens(&mut *guide).len(), 64);
    }

    #[test]
    fn allowed_tokens_mask_all_others() {
        let rules = TokenRules { allowed: vec![3, 33, 1000], min_tokens: 1 };
        assert_eq!(tokens(&mut *rules.guide(&[33], None).unwrap()), [3]);
        assert!(TokenRules::default().guide(&[1], None).is_none());
    }

    #[test]
    fn grammar_mask_is_used_if_rules_leave_no_token() {
        let rules = TokenRules { allowed: vec![6], ..TokenRules::default() };
        let mut guide = rules.guide(&[], Some(Box::new(SingleTokenGuide(5)))).unwrap();
        assert_eq!(tokens(&mut *guide), [5]);
        assert!(guide.take(5));
    }
}
