package server

import (
	"time"

	"kiln/server/view/operate"
)

// ViewsConfig is about views of SQL on FHIR.
type ViewsConfig struct {
	Enabled        bool           `koanf:"enabled" doc:"serve $sql-run, $sql-export and /admin/views"`
	ConcurrentRuns int64          `koanf:"concurrent_runs" doc:"runs of views of a server at a time; another one waits 5 seconds, then gets 503"`
	StallTimeout   string         `koanf:"stall_timeout" doc:"a client of a run that accepts no byte for so long is cut off"`
	Timeout        string         `koanf:"timeout" doc:"longest run of a view"`
	SQL            ViewsSQLConfig `koanf:"sql"`
}

// ViewsSQLConfig is about SQL queries over the tables of views.
type ViewsSQLConfig struct {
	DatabaseURL string `koanf:"database_url" secret:"url" restart:"yes" doc:"login of PostgreSQL that SQL queries run as; kiln view grant lets its role read the tables, and it has no other rights; empty: $sql-run accepts no Library"`
	Timeout     string `koanf:"timeout" doc:"longest SQL query"`
	MaxRows     int64  `koanf:"max_rows" doc:"most rows of an SQL query"`
}

var defaultViews = ViewsConfig{Enabled: true, ConcurrentRuns: 4, StallTimeout: "60s", Timeout: "10m", SQL: ViewsSQLConfig{Timeout: "30s", MaxRows: 100000}}

func (c ViewsConfig) check(p *problems) {
	p.atLeast("views.concurrent_runs", c.ConcurrentRuns, 1)
	p.duration("views.stall_timeout", c.StallTimeout, time.Millisecond)
	p.duration("views.timeout", c.Timeout, time.Millisecond)
	p.duration("views.sql.timeout", c.SQL.Timeout, time.Millisecond)
	p.atLeast("views.sql.max_rows", c.SQL.MaxRows, 1)
}

// views are the settings of package operate.
func (c Config) views() operate.Settings {
	return operate.Settings{ConcurrentRuns: int(c.Views.ConcurrentRuns), StallTimeout: readDuration(c.Views.StallTimeout), Timeout: readDuration(c.Views.Timeout),
		MaxBodyBytes: c.Server.MaxBodyBytes, SnapshotWait: readDuration(c.Bulk.SnapshotWait),
		SQL: operate.SQLSettings{URL: c.Views.SQL.DatabaseURL, Timeout: readDuration(c.Views.SQL.Timeout), MaxRows: c.Views.SQL.MaxRows}}
}
