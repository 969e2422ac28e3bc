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
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

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

/// Large bodies are processed one after the other, because a text takes many times its own memory while it is
/// tokenized. Other requests do not wait for them.
#[derive(Debug)]
pub(crate) struct LargeBodies(Arc<Semaphore>);

impl LargeBodies {
    const UNIT: usize = 64 << 10;
    const UNITS: u32 = 256;
    /// Maximum size of bodies that never wait.
    const SMALL: usize = 256 << 10;

    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::UNITS as usize)))
    }

    /// Waits until a body of this size may be processed; dropping the permit frees its place.
    pub(crate) async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
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
    /// Number of long texts that may start.
    free: Mutex<usize>,
    ended: Condvar,
}

impl LongTexts {
    /// Maximum bytes of a text that is not counted.
    const SHORT: usize = 16 << 10;

    /// Allows this many at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self { free: Mutex::new(most), ended: Condvar::new() }
    }

    /// Blocks until a text of this size may be tokenized; dropping the turn lets the next one start.
    pub(crate) fn turn(&self, bytes: usize) -> Option<LongTextTurn<'_>> {
        if bytes <= Self::SHORT {
            return None;
        }
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free =
            self.ended.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Some(LongTextTurn(self))
    }
}

/// The turn of one long text.
pub(crate) struct LongTextTurn<'a>(&'a LongTexts);

impl Drop for LongTextTurn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.ended.notify_one();
    }
}

/// Reads a body.
pub(crate) async fn read(body: Body, most: usize, within: Duration) -> Result<Bytes, ApiError> {
    // A body that declares a larger size is refused at once.
    if body.size_hint().lower() > most as u64 {
        return Err(ApiError::too_large(most));
    }
    let whole = Limited::new(body, most).collect();
    match tokio::time::timeout(within, whole).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(most)),
        Ok(Err(error)) => Err(ApiError::invalid(format!("the body is incomplete: {error}"))),
        Err(_) => Err(ApiError::too_slow(within)),
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
        let first = texts.turn(LONG);
        let second = texts.turn(LONG);
        assert!(texts.turn(LongTexts::SHORT).is_none());
        std::thread::scope(|scope| {
            let third = scope.spawn(|| texts.turn(LONG).is_some());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished());
            drop(first);
            assert!(third.join().unwrap());
        });
        drop(second);
        assert_eq!(*texts.free.lock().unwrap(), 2);
    }

    /// Some bytes, and then no end.
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
    fn bodies_end_by_size_or_by_time() {
        check(Body::from("0123456789"), Ok(10));
        check(Body::from("0123456789a"), Err(StatusCode::PAYLOAD_TOO_LARGE));
        check(Body::new(EndlessBody(11)), Err(StatusCode::PAYLOAD_TOO_LARGE));
        check(Body::new(EndlessBody(10)), Err(StatusCode::REQUEST_TIMEOUT));
        check(Body::new(EndlessBody(0)), Err(StatusCode::REQUEST_TIMEOUT));
    }
}
