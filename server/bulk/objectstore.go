package bulk

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"kiln/server/outcome"
)

// S3Config is an object store with the interface of Amazon S3.
type S3Config struct {
	Endpoint             string // URL
	Bucket, Region       string
	Prefix               string // of the keys
	AccessKey, SecretKey string
	Presign              time.Duration // life of the signed URLs of a manifest
}

// objectParts is the size of the parts that an object is sent in. Each file under way has one in memory.
// S3 takes 5 MiB at least, and 10,000 parts at most.
const objectParts = 5 << 20

// ObjectStore is a Storage in an object store.
type ObjectStore struct {
	config S3Config
	client *minio.Client
}

// NewObjectStore returns the Storage in the bucket of a configuration. It makes no request.
func NewObjectStore(c S3Config) (*ObjectStore, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("bulk.s3.endpoint: %w", err)
	}
	if c.Prefix = strings.Trim(c.Prefix, "/"); c.Prefix != "" {
		c.Prefix += "/"
	}
	client, err := minio.New(u.Host, &minio.Options{Creds: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""), Secure: u.Scheme == "https",
		Region: c.Region, MaxRetries: 3})
	if err != nil {
		return nil, fmt.Errorf("bulk.s3: %w", err)
	}
	return &ObjectStore{c, client}, nil
}

func (o *ObjectStore) key(path string) string { return o.config.Prefix + path }

// objectWriter sends an object while it is written.
type objectWriter struct {
	*io.PipeWriter
	cancel context.CancelFunc
	sent   chan error
}

// Close implements Writer.
func (w *objectWriter) Close() error {
	defer w.cancel()
	w.PipeWriter.Close()
	return <-w.sent
}

// Abort implements Writer. Nothing of an object that is not whole is stored.
func (w *objectWriter) Abort() {
	w.cancel()
	w.PipeWriter.CloseWithError(context.Canceled)
	<-w.sent
}

// Create implements Storage.
func (o *ObjectStore) Create(ctx context.Context, path string) (Writer, error) {
	ctx, cancel := context.WithCancel(ctx)
	in, out := io.Pipe()
	w := &objectWriter{out, cancel, make(chan error, 1)}
	go func() {
		// Without DisableContentSha256 some servers store the signatures of the chunks.
		_, err := o.client.PutObject(ctx, o.config.Bucket, o.key(path), in, -1,
			minio.PutObjectOptions{ContentType: ndjson, PartSize: objectParts, DisableContentSha256: true})
		if err != nil {
			err = fmt.Errorf("store an object: %w", err)
		}
		in.CloseWithError(err)
		w.sent <- err
	}()
	return w, nil
}

// Open implements Storage.
func (o *ObjectStore) Open(ctx context.Context, path string) (io.ReadSeekCloser, error) {
	return o.client.GetObject(ctx, o.config.Bucket, o.key(path), minio.GetObjectOptions{})
}

// OpenObject opens an object of any bucket.
func (o *ObjectStore) OpenObject(ctx context.Context, bucket, key string) (io.ReadCloser, error) {
	return o.client.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
}

// Remove implements Storage.
func (o *ObjectStore) Remove(ctx context.Context, path string) error {
	return o.client.RemoveObject(ctx, o.config.Bucket, o.key(path), minio.RemoveObjectOptions{})
}

// RemoveJob implements Storage.
func (o *ObjectStore) RemoveJob(ctx context.Context, job string) error {
	if job == "" || strings.ContainsAny(job, `/\.`) {
		return fmt.Errorf("bulk: %q is not the id of a job", job)
	}
	for object := range o.client.ListObjects(ctx, o.config.Bucket, minio.ListObjectsOptions{Prefix: o.key(job + "/"), Recursive: true}) {
		if object.Err != nil {
			return object.Err
		}
		if err := o.client.RemoveObject(ctx, o.config.Bucket, object.Key, minio.RemoveObjectOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Jobs implements Storage.
func (o *ObjectStore) Jobs(ctx context.Context, age time.Duration) ([]string, error) {
	newest := make(map[string]time.Time)
	for object := range o.client.ListObjects(ctx, o.config.Bucket, minio.ListObjectsOptions{Prefix: o.config.Prefix, Recursive: true}) {
		if object.Err != nil {
			return nil, object.Err
		}
		if job, _, ok := strings.Cut(strings.TrimPrefix(object.Key, o.config.Prefix), "/"); ok && object.LastModified.After(newest[job]) {
			newest[job] = object.LastModified
		}
	}
	var out []string
	for job, at := range newest {
		if time.Since(at) > age {
			out = append(out, job)
		}
	}
	return out, nil
}

// SignedURL implements Storage.
func (o *ObjectStore) SignedURL(ctx context.Context, path, contentType string) (string, error) {
	u, err := o.client.PresignedGetObject(ctx, o.config.Bucket, o.key(path), o.config.Presign, url.Values{"response-content-type": {contentType}})
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

// Mark implements Storage.
func (o *ObjectStore) Mark(ctx context.Context) (string, error) {
	for {
		text, err := o.readMark(ctx)
		if err == nil && text != "" {
			return text, nil
		}
		if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchKey {
			return "", outcome.Unavailable("the object store of bulk.s3 cannot be used").Because(err)
		}
		options := minio.PutObjectOptions{DisableContentSha256: true}
		options.SetMatchETagExcept("*") // another server may be first
		mark := rand.Text()
		_, err = o.client.PutObject(ctx, o.config.Bucket, o.key(markFile), bytes.NewReader([]byte(mark)), int64(len(mark)), options)
		if err != nil && minio.ToErrorResponse(err).StatusCode != 412 {
			return "", outcome.Unavailable("the object store of bulk.s3 cannot be used").Because(err)
		}
	}
}

func (o *ObjectStore) readMark(ctx context.Context) (string, error) {
	in, err := o.client.GetObject(ctx, o.config.Bucket, o.key(markFile), minio.GetObjectOptions{})
	if err != nil {
		return "", err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, 100))
	return string(text), err
}
