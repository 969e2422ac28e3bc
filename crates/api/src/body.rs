//! Reads request bodies, with limits of size and time.

use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Time limit for receiving a body.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Refuses a body whose content type is not JSON: a page of any origin can send `text/plain` or a form without a preflight. A body
/// without a content type is JSON; a page that sends one cross-origin sends its `Origin` too.
pub(crate) fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    for given in headers.get_all(CONTENT_TYPE) {
        let given = String::from_utf8_lossy(given.as_bytes());
        let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let json = essence == "application/json"
            || (essence.starts_with("application/") && essence.ends_with("+json"));
        if !json {
            return Err(ApiError::unsupported_content_type(&given));
        }
    }
    Ok(())
}

/// Limits the total size of large bodies that are processed at the same time, because a text takes many times its own
/// memory while it is tokenized. Small bodies never wait.
#[derive(Debug)]
pub(crate) struct LargeBodies(Arc<Semaphore>);

impl LargeBodies {
    /// Bytes per permit.
    const UNIT: usize = 64 << 10;
    /// Number of permits: 16 MiB; a larger body takes all of them.
    const UNITS: u32 = 256;
    /// Maximum size of bodies that never wait.
    const SMALL: usize = 256 << 10;

    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::UNITS as usize)))
    }

    /// Waits until a body of this size may be processed; dropping the permit lets others start.
    pub(crate) async fn acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= Self::SMALL {
            return None;
        }
        let units = u32::try_from(bytes.div_ceil(Self::UNIT)).unwrap_or(u32::MAX).min(Self::UNITS);
        // The semaphore is never closed.
        Arc::clone(&self.0).acquire_many_owned(units).await.ok()
    }
}

/// Only a few long texts are tokenized at the same time, because more would take cores from the engine. Short texts do
/// not wait for them.
#[derive(Debug)]
pub(crate) struct LongTexts {
    /// Number of long texts that may start now.
    permits: Mutex<usize>,
    released: Condvar,
}

impl LongTexts {
    /// Maximum bytes of a text that never waits.
    const SHORT: usize = 16 << 10;

    /// Allows this many long texts at a time.
    pub(crate) fn new(max: usize) -> Self {
        Self { permits: Mutex::new(max), released: Condvar::new() }
    }

    /// Blocks until a text of this size may be tokenized; dropping the permit lets the next one start.
    pub(crate) fn acquire(&self, bytes: usize) -> Option<LongTextPermit<'_>> {
        if bytes <= Self::SHORT {
            return None;
        }
        let permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut permits = self
            .released
            .wait_while(permits, |permits| *permits == 0)
            .unwrap_or_else(PoisonError::into_inner);
        *permits -= 1;
        Some(LongTextPermit(self))
    }
}

/// Permission to tokenize one long text.
pub(crate) struct LongTextPermit<'a>(&'a LongTexts);

impl Drop for LongTextPermit<'_> {
    fn drop(&mut self) {
        *self.0.permits.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.released.notify_one();
    }
}

/// Reads a body of at most `max` bytes.
pub(crate) async fn read(body: Body, max: usize, timeout: Duration) -> Result<Bytes, ApiError> {
    // A body that declares a larger size is refused at once.
    if body.size_hint().lower() > max as u64 {
        return Err(ApiError::too_large(max));
    }
    let whole = Limited::new(body, max).collect();
    match tokio::time::timeout(timeout, whole).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(max)),
        Ok(Err(error)) => Err(ApiError::invalid(format!("the body is incomplete: {error}"))),
        Err(_) => Err(ApiError::too_slow(timeout)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use http_body::Frame;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    #[test]
    fn only_json_is_accepted() {
        let check = |types: &[&'static str], want: bool| {
            let mut headers = HeaderMap::new();
            for kind in types {
                headers.append(CONTENT_TYPE, axum::http::HeaderValue::from_static(kind));
            }
            let status = check_type(&headers).map_err(|error| error.status);
            assert_eq!(status.is_ok(), want, "{types:?}");
            assert!(status.err().is_none_or(|status| status == StatusCode::UNSUPPORTED_MEDIA_TYPE));
        };
        check(&[], true);
        check(&["application/json"], true);
        check(&["Application/JSON; charset=utf-8"], true);
        check(&["application/ld+json"], true);
        for other in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=a",
            "",
            "text/json",
        ] {
            check(&[other], false);
            check(&["application/json", other], false);
        }
        check(&["text/plain; application/json"], false);
    }

    #[test]
    fn short_texts_do_not_wait_for_long_ones() {
        const LONG: usize = LongTexts::SHORT + 1;
        let texts = LongTexts::new(2);
        let first = texts.acquire(LONG);
        let second = texts.acquire(LONG);
        assert!(texts.acquire(LongTexts::SHORT).is_none());
        std::thread::scope(|scope| {
            let third = scope.spawn(|| texts.acquire(LONG).is_some());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished());
            drop(first);
            assert!(third.join().unwrap());
        });
        drop(second);
        assert_eq!(*texts.permits.lock().unwrap(), 2);
    }

    /// A body that sends some bytes and then stalls without an end.
    struct EndlessBody(usize);

    impl http_body::Body for EndlessBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let bytes = Bytes::from(vec![b'x'; std::mem::take(&mut self.0)]);
            if bytes.is_empty() { Poll::Pending } else { Poll::Ready(Some(Ok(Frame::data(bytes)))) }
        }
    }

    fn check(body: Body, want: Result<usize, StatusCode>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let read = runtime.block_on(read(body, 10, Duration::from_millis(50)));
        assert_eq!(read.map(|bytes| bytes.len()).map_err(|error| error.status), want);
    }

    #[test]
    fn large_and_stalled_bodies_are_refused() {
        check(Body::from("0123456789"), Ok(10));
        check(Body::from("0123456789a"), Err(StatusCode::PAYLOAD_TOO_LARGE));
        check(Body::new(EndlessBody(11)), Err(StatusCode::PAYLOAD_TOO_LARGE));
        check(Body::new(EndlessBody(10)), Err(StatusCode::REQUEST_TIMEOUT));
        check(Body::new(EndlessBody(0)), Err(StatusCode::REQUEST_TIMEOUT));
    }
}
