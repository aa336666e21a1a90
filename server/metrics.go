package server

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/admin"
)

// registerStateMetrics adds the metrics of caches, of work that waits, of disks and of the
// build.
func (s *Server) registerStateMetrics(caches []admin.Cache) {
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "service_build_info", Help: "1, with the version of the software and of Go.",
		ConstLabels: prometheus.Labels{"version": s.version, "go_version": runtime.Version()}})
	build.Set(1)
	s.Metrics.MustRegister(build, cacheMetrics{caches}, workMetrics{s}, diskMetrics{s})
}

// cacheMetrics are the metrics of this server's caches.
type cacheMetrics struct{ caches []admin.Cache }

var cacheDescriptions = []struct {
	desc  *prometheus.Desc
	typ   prometheus.ValueType
	value func(admin.CacheStatistics) float64
}{
	{cacheDescription("hits_total", "Answers from the cache."), prometheus.CounterValue, func(c admin.CacheStatistics) float64 { return float64(c.Hits) }},
	{cacheDescription("misses_total", "Questions that the cache could not answer."), prometheus.CounterValue, func(c admin.CacheStatistics) float64 { return float64(c.Misses) }},
	{cacheDescription("evictions_total", "Entries that were removed for others."), prometheus.CounterValue, func(c admin.CacheStatistics) float64 { return float64(c.Evictions) }},
	{cacheDescription("entries", "Entries of the cache."), prometheus.GaugeValue, func(c admin.CacheStatistics) float64 { return float64(c.Size) }},
	{cacheDescription("bytes", "Size of the cache, roughly; 0 where it is not counted."), prometheus.GaugeValue, func(c admin.CacheStatistics) float64 { return float64(c.Bytes) }},
}

func cacheDescription(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("service_cache_"+name, help, []string{"cache"}, nil)
}

// Describe implements prometheus.Collector.
func (m cacheMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range cacheDescriptions {
		out <- d.desc
	}
}

// Collect implements prometheus.Collector.
func (m cacheMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.caches {
		state := c.Statistics()
		for _, d := range cacheDescriptions {
			out <- prometheus.MustNewConstMetric(d.desc, d.typ, d.value(state), c.Name)
		}
	}
}

// workMetrics asks the database for the work that waits, when metrics are read.
type workMetrics struct{ s *Server }

var (
	auditWaiting     = prometheus.NewDesc("service_audit_pending", "Groups of recorded events that are not AuditEvents yet, by source: reads, writes.", []string{"source"}, nil)
	reindexRemaining = prometheus.NewDesc("service_reindex_remaining", "Resources that unfinished reindexing has yet to process.", nil, nil)
	reindexFailed    = prometheus.NewDesc("service_reindex_failed", "Resources that unfinished reindexing could not process.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m workMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- auditWaiting
	out <- reindexRemaining
	out <- reindexFailed
}

// Collect implements prometheus.Collector. Without the database it returns nothing.
func (m workMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if reads, writes, err := m.s.Store.AuditWaiting(ctx); err == nil {
		out <- prometheus.MustNewConstMetric(auditWaiting, prometheus.GaugeValue, float64(reads), "reads")
		out <- prometheus.MustNewConstMetric(auditWaiting, prometheus.GaugeValue, float64(writes), "writes")
	}
	list, err := m.s.Store.ReindexJobs(ctx)
	if err != nil {
		return
	}
	var remaining, failed int64
	for _, j := range list {
		if j.Finished.IsZero() && !j.Cancelled {
			remaining += max(0, j.Total-j.Done)
			failed += j.Failed
		}
	}
	out <- prometheus.MustNewConstMetric(reindexRemaining, prometheus.GaugeValue, float64(remaining))
	out <- prometheus.MustNewConstMetric(reindexFailed, prometheus.GaugeValue, float64(failed))
}

// diskMetrics are those of the file systems that this server writes to: of bulk.directory, and
// of database.data_dir with a private PostgreSQL.
type diskMetrics struct{ s *Server }

var (
	diskFree = prometheus.NewDesc("service_disk_free_bytes", "Free space of the file system of a folder that the server writes to.", []string{"folder"}, nil)
	diskSize = prometheus.NewDesc("service_disk_size_bytes", "Size of the file system of a folder that the server writes to.", []string{"folder"}, nil)
)

// Describe implements prometheus.Collector.
func (m diskMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- diskFree
	out <- diskSize
}

// Collect implements prometheus.Collector.
func (m diskMetrics) Collect(out chan<- prometheus.Metric) {
	folders := map[string]string{"bulk.directory": m.s.Config.bulkDirectory()}
	if m.s.Database != nil {
		folders["database.data_dir"] = m.s.Config.Database.DataDir
	}
	for key, folder := range folders {
		var fs syscall.Statfs_t
		err := syscall.Statfs(folder, &fs)
		for errors.Is(err, syscall.ENOENT) && folder != filepath.Dir(folder) { // it is made when it is needed
			folder = filepath.Dir(folder)
			err = syscall.Statfs(folder, &fs)
		}
		if err != nil {
			continue
		}
		block := float64(fs.Bsize)
		out <- prometheus.MustNewConstMetric(diskFree, prometheus.GaugeValue, float64(fs.Bavail)*block, key)
		out <- prometheus.MustNewConstMetric(diskSize, prometheus.GaugeValue, float64(fs.Blocks)*block, key)
	}
}
