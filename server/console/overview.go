package console

import (
	"time"
)

// overviewPage is the first page. Without the scope admin it has the region My data alone.
type overviewPage struct {
	Ready     bool
	Facts     [][2]string // of the region Health
	Charts    []chart
	Storage   table
	Tables    [][2]string
	Attention []attention
	Backups   table
	Mine      table
	Own       string // the person's own record
}

// attention is something that an administrator should look at.
type attention struct{ Text, Link string }

// oldBackup is the age at which a backup is old.
const oldBackup = 7 * 24 * time.Hour

// trafficPoint is a minute of a server, as /admin/traffic answers it.
type trafficPoint struct {
	At               time.Time
	Requests, Errors int64
	P95              float64 `json:"p95_ms"`
}

// overview shows the state of the server.
func (v *visit) overview(_ []string) error {
	var p overviewPage
	if !v.Admin() {
		return v.myData(&p)
	}
	p.Ready = v.c.Ready(v.r.Context()) == nil
	for _, fill := range []func(*overviewPage) error{v.fillHealth, v.fillTraffic, v.fillStorage, v.fillBackups, v.fillAttention} {
		if err := fill(&p); err != nil {
			return err
		}
	}
	return v.show("overview", v.T("Overview"), "", p)
}

// myData shows how many resources of each type the person may see.
func (v *visit) myData(p *overviewPage) error {
	list, err := v.typeCounts()
	if err != nil {
		return err
	}
	p.Mine = table{Name: v.T("Resource types"), Head: columns(v.T("Type"), "#"+v.T("Resources")), Empty: v.T("There are none.")}
	for _, t := range list {
		if t.N > 0 {
			p.Mine.Rows = append(p.Mine.Rows, []cell{linkCell(t.Type, "/console/resources/"+t.Type), v.numberCell(t.N)})
		}
	}
	if user := v.principal.FHIRUser; user != "" {
		p.Own = user
	}
	return v.show("overview", v.T("Overview"), "", *p)
}

func (v *visit) fillHealth(p *overviewPage) error {
	var servers []struct {
		Address, Version string
		Started          time.Time
		Load             float64
	}
	if err := v.get("/admin/servers", &servers); err != nil {
		return err
	}
	p.Facts = append(p.Facts, [2]string{v.T("Version"), v.c.Version}, [2]string{v.T("Servers"), formatNumber(v.Language, int64(len(servers)))})
	for _, s := range servers {
		p.Facts = append(p.Facts, [2]string{s.Address, v.T("since %s, %s requests a second", formatTime(s.Started), v.decimal(short(s.Load)))})
	}
	return nil
}

func (v *visit) fillTraffic(p *overviewPage) error {
	var answer struct{ Points []trafficPoint }
	if err := v.get("/admin/traffic?minutes=60", &answer); err != nil {
		return err
	}
	type minute struct {
		requests int64
		p95      float64
	}
	byMinute := make(map[time.Time]minute)
	for _, t := range answer.Points {
		m := byMinute[t.At]
		byMinute[t.At] = minute{m.requests + t.Requests, max(m.p95, t.P95)}
	}
	rate := chart{Name: v.T("Requests per second"), Title: v.T("Requests per second")}
	slow := chart{Name: v.T("95th percentile"), Title: v.T("95th percentile")}
	var rates, slows []point
	rateTable := table{Name: v.T("Values of %s", rate.Title), Head: columns(v.T("Time"), "#"+v.T("Value"))}
	slowTable := table{Name: v.T("Values of %s", slow.Title), Head: columns(v.T("Time"), "#"+v.T("Value"))}
	now := v.c.now().UTC().Truncate(time.Minute)
	var mostRate, mostSlow float64
	for i := 60; i > 0; i-- {
		at := now.Add(-time.Duration(i) * time.Minute)
		m, ok := byMinute[at]
		perSecond := float64(m.requests) / 60
		rates, slows = append(rates, point{float64(-i), perSecond}), append(slows, point{float64(-i), m.p95})
		mostRate, mostSlow = max(mostRate, perSecond), max(mostSlow, m.p95)
		if ok {
			rateTable.Rows = append(rateTable.Rows, []cell{{Text: at.Format("15:04Z"), Head: true}, {Text: v.decimal(short(perSecond)), Class: "number"}})
			slowTable.Rows = append(slowTable.Rows, []cell{{Text: at.Format("15:04Z"), Head: true}, {Text: v.decimal(short(m.p95)) + " ms", Class: "number"}})
		}
	}
	rate.draw(rates, true)
	slow.draw(slows, true)
	rate.Range, slow.Range = v.T("last hour, at most %s", v.decimal(short(mostRate))), v.T("last hour, at most %s", v.decimal(short(mostSlow))+" ms")
	rate.Table, slow.Table = &rateTable, &slowTable
	p.Charts = []chart{rate, slow}
	return nil
}

func (v *visit) fillStorage(p *overviewPage) error {
	stats, err := v.c.storage.read(v)
	if err != nil {
		return err
	}
	p.Tables = [][2]string{{v.T("Database"), v.bytes(stats.bytes)}, {"PostgreSQL", stats.version}, {v.T("As of"), formatTime(stats.at)}}
	p.Storage = table{Name: v.T("Largest tables"), Head: columns(v.T("Table"), "#"+v.T("Size"), "#"+v.T("Rows"))}
	for _, t := range stats.tables {
		p.Storage.Rows = append(p.Storage.Rows, []cell{{Text: t.name, Head: true}, {Text: v.bytes(t.bytes), Class: "number"}, v.numberCell(t.rows)})
	}
	return nil
}

// backupRun is an entry of /admin/backups.
type backupRun struct {
	Started, Ended time.Time
	Bytes          int64
	Verified       bool
}

func (v *visit) fillBackups(p *overviewPage) error {
	var answer struct{ Backups []backupRun }
	if err := v.get("/admin/backups", &answer); err != nil {
		return err
	}
	p.Backups = table{Name: v.T("Backups"), Head: columns(v.T("Started"), v.T("Ended"), "#"+v.T("Size"), v.T("Verified")), Empty: v.T("No backup was written.")}
	for _, b := range answer.Backups[:min(len(answer.Backups), 5)] {
		verified := v.T("no")
		if b.Verified {
			verified = v.T("yes")
		}
		started := timeCell(&b.Started)
		started.Head = true
		p.Backups.Rows = append(p.Backups.Rows, []cell{started, timeCell(&b.Ended), {Text: v.bytes(b.Bytes), Class: "number"}, textCell(verified)})
	}
	switch {
	case len(answer.Backups) == 0:
		p.Attention = append(p.Attention, attention{v.T("No backup was written."), "#backups"})
	case v.c.now().Sub(answer.Backups[0].Started) > oldBackup:
		p.Attention = append(p.Attention, attention{v.T("The last backup is of %s.", formatTime(answer.Backups[0].Started)), "#backups"})
	}
	return nil
}

// fillAttention lists failed Subscriptions, dead letters and failed jobs.
func (v *visit) fillAttention(p *overviewPage) error {
	var failing searchBundle
	if err := v.get("/Subscription?status=error&_count=20&_elements=id", &failing); err != nil {
		return err
	}
	for _, e := range failing.Entry {
		if n, err := parseTree(e.Resource); err == nil {
			name := "Subscription/" + n.str("id")
			p.Attention = append(p.Attention, attention{v.T("%s fails", name), "/console/" + name + "/deliveries"})
		}
	}
	return v.fillMoreAttention(p)
}
