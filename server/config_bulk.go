package server

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kiln/server/bulk"
	"kiln/server/outbound"
)

// BulkConfig is about Bulk Data.
type BulkConfig struct {
	Export       BulkExportConfig `koanf:"export"`
	Import       BulkImportConfig `koanf:"import"`
	S3           BulkS3Config     `koanf:"s3" restart:""`
	Directory    string           `koanf:"directory" restart:"" doc:"folder of the results, which all servers of a database share; empty is bulk in database.data_dir"`
	MaxFileMB    int64            `koanf:"max_file_mb" doc:"size of a file of results, unpacked; a larger resource stands alone"`
	QuotaMB      int64            `koanf:"quota_mb" doc:"size of the files of all results; 0 is without bound"`
	SnapshotWait string           `koanf:"snapshot_wait" doc:"how long an export waits for older writes"`
}

// BulkExportConfig is about $export.
type BulkExportConfig struct {
	Enabled bool `koanf:"enabled" doc:"serve $export"`
}

// BulkS3Config is an object store for the results, in place of bulk.directory.
type BulkS3Config struct {
	Endpoint  string `koanf:"endpoint" doc:"URL of an object store with the interface of Amazon S3"`
	Bucket    string `koanf:"bucket" doc:"bucket of the results; empty stores them in bulk.directory"`
	Region    string `koanf:"region" doc:"region of the bucket"`
	Prefix    string `koanf:"prefix" doc:"beginning of the keys of the results"`
	AccessKey string `koanf:"access_key" doc:"id of the key that signs requests"`
	SecretKey string `koanf:"secret_key" secret:"yes" doc:"key that signs requests"`
	Presign   string `koanf:"presign" doc:"life of the signed URLs in a manifest"`
}

// BulkImportConfig is about $import.
type BulkImportConfig struct {
	Enabled              bool      `koanf:"enabled" doc:"serve $import"`
	Sources              []string  `koanf:"sources" doc:"prefixes of the URLs that may be imported; none allows every https URL; file: and s3: always need one"`
	AllowHTTP            bool      `koanf:"allow_http" doc:"allow http sources that are not on loopback"`
	AllowPrivateNetworks Automatic `koanf:"allow_private_networks" doc:"true or false: allow sources in private networks and on loopback; auto is true while auth.enabled is false"`
	MaxErrors            int       `koanf:"max_errors" doc:"lines of a file of errors"`
}

var defaultBulk = BulkConfig{Export: BulkExportConfig{Enabled: true}, Import: BulkImportConfig{Enabled: true, AllowPrivateNetworks: "auto", MaxErrors: 10_000},
	S3: BulkS3Config{Presign: "1h"}, MaxFileMB: 512, SnapshotWait: "60s"}

func (c BulkConfig) check(p *problems) {
	p.atLeast("bulk.max_file_mb", c.MaxFileMB, 1)
	p.atLeast("bulk.quota_mb", c.QuotaMB, 0)
	p.duration("bulk.snapshot_wait", c.SnapshotWait, time.Millisecond)
	p.duration("bulk.s3.presign", c.S3.Presign, time.Second)
	if u, err := url.Parse(c.S3.Endpoint); c.S3.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.Path != "" && u.Path != "/") {
		p.add("bulk.s3.endpoint is %q: expected a URL that starts with http:// or https://, without a path", c.S3.Endpoint)
	}
	if c.S3.Bucket != "" && c.S3.Endpoint == "" {
		p.add("bulk.s3.bucket is set without bulk.s3.endpoint")
	}
	if readDuration(c.S3.Presign) > 7*24*time.Hour {
		p.add("bulk.s3.presign is %q: expected at most 7d", c.S3.Presign)
	}
	p.atLeast("bulk.import.max_errors", int64(c.Import.MaxErrors), 0)
	for _, prefix := range c.Import.Sources {
		u, err := url.Parse(prefix)
		if err != nil || !slices.Contains([]string{"https", "http", "file", "s3"}, u.Scheme) || u.Scheme != "file" && u.Host == "" || u.RawQuery != "" || u.User != nil ||
			u.Scheme == "file" && !strings.HasPrefix(u.Path, "/") {
			p.add("bulk.import.sources has %q: expected the beginning of an https:, http:, file: or s3: URL", prefix)
		}
	}
	if _, err := c.Import.allowPrivate(false); err != nil {
		p.add("%v", err)
	}
}

// allowPrivate is the value of bulk.import.allow_private_networks.
func (c BulkImportConfig) allowPrivate(authEnabled bool) (bool, error) {
	return allowPrivate("bulk.import", c.AllowPrivateNetworks, authEnabled)
}

// bulk are the settings of package bulk.
func (c Config) bulk() bulk.Settings {
	private, _ := c.Bulk.Import.allowPrivate(c.Auth.Enabled) // Check has read it
	return bulk.Settings{Import: bulk.ImportSettings{S3: c.Bulk.S3.Endpoint != "", Sources: c.Bulk.Import.Sources, MaxErrors: c.Bulk.Import.MaxErrors, MaxLine: c.Server.MaxBodyBytes,
		Outbound: outbound.Rules{AllowHTTP: c.Bulk.Import.AllowHTTP, AllowPrivate: private, Section: "bulk.import", Name: "import"}},
		PollsPerMinute: c.Jobs.PollsPerMinute, Retention: readDuration(c.Jobs.Retention), MaxFileBytes: c.Bulk.MaxFileMB << 20,
		QuotaBytes: c.Bulk.QuotaMB << 20, SnapshotWait: readDuration(c.Bulk.SnapshotWait)}
}

// objectStore is the object store of the results and of s3: sources; nil where there is none.
func (c Config) objectStore() (*bulk.ObjectStore, error) {
	s := c.Bulk.S3
	if s.Endpoint == "" {
		return nil, nil
	}
	return bulk.NewObjectStore(bulk.S3Config{Endpoint: s.Endpoint, Bucket: s.Bucket, Region: s.Region, Prefix: s.Prefix, AccessKey: s.AccessKey, SecretKey: s.SecretKey,
		Presign: readDuration(s.Presign)})
}

// bulkDirectory is the folder of the results.
func (c Config) bulkDirectory() string {
	if c.Bulk.Directory != "" {
		return c.Bulk.Directory
	}
	return filepath.Join(c.Database.DataDir, "bulk")
}
