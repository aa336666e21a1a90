package server

import (
	"path/filepath"
	"time"

	"kiln/server/bulk"
)

// BulkConfig is about Bulk Data.
type BulkConfig struct {
	Export       BulkExportConfig `koanf:"export"`
	Directory    string           `koanf:"directory" restart:"" doc:"folder of the results, which all servers of a database share; empty is bulk in database.data_dir"`
	MaxFileMB    int64            `koanf:"max_file_mb" doc:"size of a file of results, unpacked; a larger resource stands alone"`
	QuotaMB      int64            `koanf:"quota_mb" doc:"size of the files of all results; 0 is without bound"`
	SnapshotWait string           `koanf:"snapshot_wait" doc:"how long an export waits for older writes"`
}

// BulkExportConfig is about $export.
type BulkExportConfig struct {
	Enabled bool `koanf:"enabled" doc:"serve $export"`
}

var defaultBulk = BulkConfig{Export: BulkExportConfig{Enabled: true}, MaxFileMB: 512, SnapshotWait: "60s"}

func (c BulkConfig) check(p *problems) {
	p.atLeast("bulk.max_file_mb", c.MaxFileMB, 1)
	p.atLeast("bulk.quota_mb", c.QuotaMB, 0)
	p.duration("bulk.snapshot_wait", c.SnapshotWait, time.Millisecond)
}

// bulk are the settings of package bulk.
func (c Config) bulk() bulk.Settings {
	return bulk.Settings{PollsPerMinute: c.Jobs.PollsPerMinute, Retention: readDuration(c.Jobs.Retention), MaxFileBytes: c.Bulk.MaxFileMB << 20,
		QuotaBytes: c.Bulk.QuotaMB << 20, SnapshotWait: readDuration(c.Bulk.SnapshotWait)}
}

// bulkDirectory is the folder of the results.
func (c Config) bulkDirectory() string {
	if c.Bulk.Directory != "" {
		return c.Bulk.Directory
	}
	return filepath.Join(c.Database.DataDir, "bulk")
}
