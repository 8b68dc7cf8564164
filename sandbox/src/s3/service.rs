//! The operations that the sandbox's S3 knows, each entered through the gate.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result};

use super::Action;
use super::faults::Faults;
use super::gate::{Entry, Identities, source_of};
use super::store::{Store, no_such_bucket};

/// One server's operations. Clones are the same server.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) store: Arc<Store>,
    pub(super) faults: Faults,
    pub(super) identities: Arc<Identities>,
    pub(super) limits: Arc<Limits>,
}

/// Sizes that S3 enforces, lowered by tests; in bytes.
#[derive(Debug)]
pub(super) struct Limits {
    /// The largest object that one copy, or one range of a part copy, may take.
    pub(super) copy: AtomicU64,
    /// The smallest part of a completed upload that is not its last.
    pub(super) min_part: AtomicU64,
}

fn done<T>(output: T) -> S3Result<S3Response<T>> {
    Ok(S3Response::new(output))
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn list_buckets(&self, req: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let orders = self.enter(Entry::bucket("ListBuckets", &req, Action::List, "", "")).await?;
        let names: Vec<String> = self.store.lock().keys().cloned().collect();
        let bucket = |name| s3s::dto::Bucket { name: Some(name), ..Default::default() };
        let buckets = Some(names.into_iter().map(bucket).collect());
        done(orders.answer(ListBucketsOutput { buckets, ..Default::default() })?)
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        let orders = self.enter(Entry::bucket("HeadBucket", &req, Action::List, &req.input.bucket, "")).await?;
        self.store.with(&req.input.bucket, |_| Ok(()))?;
        done(orders.answer(HeadBucketOutput::default())?)
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let entry = Entry::bucket("GetBucketLocation", &req, Action::List, &req.input.bucket, "");
        let orders = self.enter(entry).await?;
        self.store.with(&req.input.bucket, |_| Ok(()))?;
        done(orders.answer(GetBucketLocationOutput::default())?)
    }

    async fn get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let entry = Entry::bucket("GetBucketVersioning", &req, Action::Read, &req.input.bucket, "");
        let orders = self.enter(entry).await?;
        self.store.with(&req.input.bucket, |_| Ok(()))?;
        // As S3 answers for a bucket that never had versioning: neither enabled nor suspended.
        done(orders.answer(GetBucketVersioningOutput::default())?)
    }

    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        let orders = self.enter(Entry::bucket("CreateBucket", &req, Action::Admin, &req.input.bucket, "")).await?;
        self.store.create_bucket(&req.input.bucket).map_err(S3Error::internal_error)?;
        done(orders.answer(CreateBucketOutput::default())?)
    }

    async fn delete_bucket(&self, req: S3Request<DeleteBucketInput>) -> S3Result<S3Response<DeleteBucketOutput>> {
        let orders = self.enter(Entry::bucket("DeleteBucket", &req, Action::Admin, &req.input.bucket, "")).await?;
        self.store.remove_bucket(&req.input.bucket)?;
        done(orders.answer(DeleteBucketOutput::default())?)
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        let prefix = req.input.prefix.clone().unwrap_or_default();
        let entry = Entry::bucket("ListObjectsV2", &req, Action::List, &req.input.bucket, &prefix);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.list(req.input, &orders)?)?)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let entry = Entry::key("PutObject", &req, Action::Write, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.put(req.input, req.trailing_headers).await?)?)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let entry = Entry::key("GetObject", &req, Action::Read, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.read(req.input)?)?)
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let entry = Entry::key("HeadObject", &req, Action::Read, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.head(&req.input)?)?)
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        let entry = Entry::key("DeleteObject", &req, Action::Write, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        self.delete_one(&req.input)?;
        done(orders.answer(DeleteObjectOutput::default())?)
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let keys = req.input.delete.objects.iter().map(|object| object.key.clone()).collect();
        let access_key = req.credentials.as_ref().map(|known| known.access_key.clone()).unwrap_or_default();
        let entry = Entry::bucket("DeleteObjects", &req, Action::Write, &req.input.bucket, "").keys(keys);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.delete_many(req.input, &access_key)?)?)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let source = source_of(&req.input.copy_source)?;
        let entry = Entry::key("CopyObject", &req, Action::Write, &req.input.bucket, &req.input.key).source(&source);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.copy(req.input, &source)?)?)
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let entry = Entry::key("CreateMultipartUpload", &req, Action::Write, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.create_upload(req.input)?)?)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let entry = Entry::key("UploadPart", &req, Action::Write, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.put_part(req.input, req.trailing_headers).await?)?)
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let source = source_of(&req.input.copy_source)?;
        let entry =
            Entry::key("UploadPartCopy", &req, Action::Write, &req.input.bucket, &req.input.key).source(&source);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.copy_part(&req.input, &source)?)?)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let entry = Entry::key("CompleteMultipartUpload", &req, Action::Write, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.complete_upload(req.input)?)?)
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let entry = Entry::key("AbortMultipartUpload", &req, Action::Write, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        self.abort_upload(&req.input)?;
        done(orders.answer(AbortMultipartUploadOutput::default())?)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let prefix = req.input.prefix.clone().unwrap_or_default();
        let entry = Entry::bucket("ListMultipartUploads", &req, Action::List, &req.input.bucket, &prefix);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.list_uploads(req.input)?)?)
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let entry = Entry::key("ListParts", &req, Action::Read, &req.input.bucket, &req.input.key);
        let orders = self.enter(entry).await?;
        done(orders.answer(self.list_parts_of(&req.input)?)?)
    }
}

impl Service {
    /// Refuses a bucket that does not exist, as S3 does before it looks at anything else.
    pub(super) fn require_bucket(&self, bucket: &str) -> S3Result<()> {
        if self.store.lock().contains_key(bucket) { Ok(()) } else { Err(no_such_bucket()) }
    }
}
