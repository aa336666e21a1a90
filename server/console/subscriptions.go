package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// delivery is a delivery, as /admin/notifications/deliveries answers it.
type delivery struct {
	ID, Subscription, Event, ResourceType, ResourceID, VersionID, Status string
	NotificationID                                                       string
	Attempts                                                             []deliveryAttempt
	NextAttemptAt                                                        *string
}

type deliveryAttempt struct {
	At         string
	Status     int
	DurationMS json.Number `json:"durationMs"`
	Error      string
}

// deadLettersShown bounds how many dead letters are counted.
const deadLettersShown = 1000

// deadLetters counts the dead letters of each subscriber.
func (v *visit) deadLetters() (map[string]int64, error) {
	var answer struct{ Deliveries []delivery }
	if err := v.get("/admin/notifications/deliveries?status=failed&_count="+strconv.Itoa(deadLettersShown), &answer); err != nil {
		return nil, err
	}
	out := make(map[string]int64)
	for _, d := range answer.Deliveries {
		out[d.Subscription]++
	}
	return out, nil
}

// subscriptions lists the Subscriptions.
func (v *visit) subscriptions(_ []string) error {
	dead, err := v.deadLetters()
	if err != nil {
		return err
	}
	var b searchBundle
	if err := v.get("/Subscription?_count=200&_total=accurate", &b); err != nil {
		return err
	}
	t := table{Name: v.T("Subscriptions"), Head: columns(v.T("Id"), v.T("Criteria"), v.T("Endpoint"), v.T("Status"), "#"+v.T("Dead letters"))}
	for _, e := range b.Entry {
		n, err := parseTree(e.Resource)
		if err != nil || e.Search.Mode != "match" {
			continue
		}
		id := n.str("id")
		t.Rows = append(t.Rows, []cell{linkCell(id, "/console/Subscription/"+escape(id)+"/deliveries"), textCell(n.str("criteria")), textCell(n.str("channel", "endpoint")), {Tag: n.str("status")}, v.numberCell(dead["Subscription/"+id])})
	}
	if b.Total != nil && *b.Total > int64(len(t.Rows)) {
		t.More = v.plural(*b.Total-int64(len(t.Rows)), "1 more is in the search.", "%s more are in the search.")
	}
	return v.showPanel("subscriptions", v.T("Subscriptions"), panel{Tables: []table{t}, Links: []navItem{{Name: v.T("New %s", "Subscription"), Path: "/console/Subscription/new"}, {Name: v.T("Live events"), Path: "/console/live"}}})
}

// deliveriesTable is the table Deliveries of a subscriber.
func (v *visit) deliveriesTable(subscriber string) (table, error) {
	var answer struct {
		Deliveries []delivery
		Next       *string
	}
	err := v.get("/admin/notifications/deliveries?_count=100&subscription="+url.QueryEscape(subscriber), &answer)
	t := table{Name: v.T("Deliveries"), Head: columns(v.T("Delivery"), v.T("Event"), v.T("Resource"), v.T("Status"), "#"+v.T("Attempts"))}
	for _, d := range answer.Deliveries {
		t.Rows = append(t.Rows, []cell{linkCell(d.ID, "/console/deliveries/"+escape(d.ID)), textCell(d.Event), referenceCell(d.ResourceType+"/"+d.ResourceID, ""), {Tag: d.Status}, v.numberCell(int64(len(d.Attempts)))})
	}
	if answer.Next != nil {
		t.More = v.T("The newest %d are shown.", len(t.Rows))
	}
	return t, err
}

// translated gives tabs their names in the language of the page.
func (v *visit) translated(list []navItem) []navItem {
	for i := range list {
		list[i].Name = v.T(list[i].Name)
	}
	return list
}

// subscriptionDeliveries shows the deliveries of a Subscription, and acts on them.
func (v *visit) subscriptionDeliveries(id string) error {
	if !v.Admin() {
		return v.notAllowed()
	}
	name := "Subscription/" + id
	here := "/console/" + name + "/deliveries"
	if v.r.Method == http.MethodPost {
		switch v.form.Get("action") {
		case "test":
			var answer parameters
			if err := v.send(http.MethodPost, "/"+name+"/$test", nil, &answer); err != nil {
				return err
			}
			status, failure, success := "", "", false
			for _, p := range answer.Parameter {
				switch p.Name {
				case "success":
					success = p.value == "true"
				case "status":
					status = p.value
				case "error":
					failure = p.value
				}
			}
			if !success {
				return v.failed(here, v.T("The test was not delivered: %s", cmp.Or(failure, status)))
			}
			return v.done(here, v.T("The test was delivered."))
		case "again":
			body, version, err := v.read("Subscription", id)
			if err != nil {
				return err
			}
			patch := `[{"op":"replace","path":"/status","value":"requested"}]`
			if len(body) == 0 {
				return errNoPage
			}
			if err := v.call(http.MethodPatch, "/"+name, []byte(patch), "Content-Type", "application/json-patch+json", "If-Match", `W/"`+version+`"`).err(); err != nil {
				return err
			}
			return v.done(here, v.T("%s is requested again.", name))
		case "redeliver":
			var answer struct{ Redelivered int64 }
			if err := v.send(http.MethodPost, "/admin/notifications/dead-letters/redeliver?subscription="+url.QueryEscape(id), nil, &answer); err != nil {
				return err
			}
			return v.done(here, v.plural(answer.Redelivered, "1 dead letter is delivered again.", "%s dead letters are delivered again."))
		}
		return errNoPage
	}
	body, _, err := v.read("Subscription", id)
	if err != nil {
		return err
	}
	n, err := parseTree(body)
	if err != nil {
		return err
	}
	t, err := v.deliveriesTable(name)
	if err != nil {
		return err
	}
	p := panel{TabsName: v.T("Resource"), Tabs: v.translated(v.tabs("Subscription", id, "Deliveries")), Tables: []table{t},
		Facts:   [][2]string{{v.T("Criteria"), n.str("criteria")}, {v.T("Endpoint"), n.str("channel", "endpoint")}, {v.T("Status"), n.str("status")}},
		Buttons: []button{v.post(v.T("Send a test"), here, "action", "test"), v.post(v.T("Try again"), here, "action", "again"), v.post(v.T("Redeliver dead letters"), here, "action", "redeliver")}}
	if e := n.str("error"); e != "" {
		p.Facts = append(p.Facts, [2]string{v.T("Error"), e})
	}
	return v.showPanel("deliveries", v.T("Deliveries"), p)
}

// delivery shows one delivery with its attempts.
func (v *visit) delivery(parts []string) error {
	path := "/admin/notifications/deliveries/" + escape(parts[0])
	if v.r.Method == http.MethodPost {
		if err := v.send(http.MethodPost, path+"/redeliver", nil, nil); err != nil {
			return err
		}
		return v.done("/console/deliveries/"+escape(parts[0]), v.T("The delivery is due again."))
	}
	a := v.call(http.MethodGet, path, nil)
	if err := a.err(); err != nil {
		return err
	}
	var d delivery
	if err := decodeJSON(a.Bytes(), &d); err != nil {
		return err
	}
	t := table{Name: v.T("Attempts"), Head: columns(v.T("At"), "#"+v.T("Status"), "#"+v.T("Duration"), v.T("Error"))}
	for _, x := range d.Attempts {
		status := ""
		if x.Status != 0 {
			status = strconv.Itoa(x.Status)
		}
		t.Rows = append(t.Rows, []cell{{Text: x.At, Head: true, Class: "date"}, {Text: status, Class: "number"}, {Text: x.DurationMS.String() + " ms", Class: "number"}, {Text: x.Error, Class: "wrap"}})
	}
	p := panel{Facts: [][2]string{{v.T("Subscription"), d.Subscription}, {v.T("Event"), d.Event}, {v.T("Resource"), d.ResourceType + "/" + d.ResourceID}, {v.T("Status"), d.Status}},
		Tables: []table{t}, Regions: []region{{v.T("Message"), indentJSON(a.Bytes())}}, Buttons: []button{v.post(v.T("Redeliver"), "/console/deliveries/"+escape(d.ID))}}
	if id, ok := strings.CutPrefix(d.Subscription, "Subscription/"); ok {
		p.Links = []navItem{{Name: v.T("Deliveries"), Path: "/console/Subscription/" + escape(id) + "/deliveries"}}
	}
	return v.showPanel("delivery", v.T("Delivery"), p)
}

// liveShown is how many events the page has without script.
const liveShown = 50

// newestEvents are lines of the newest writes after an instant, newest first, and the instant of the newest.
func (v *visit) newestEvents(since string) (lines []string, newest string, err error) {
	target := "/_history?_count=" + strconv.Itoa(liveShown)
	if since != "" {
		target += "&_since=" + url.QueryEscape(since)
	}
	var b historyBundle
	if err := v.get(target, &b); err != nil {
		return nil, since, err
	}
	newest = since
	for _, e := range b.Entry {
		at := e.Response.LastModified
		if at == since {
			continue
		}
		if newest == since || at > newest {
			newest = at
		}
		lines = append(lines, at+" "+e.Request.Method+" "+e.Request.URL)
	}
	return lines, newest, nil
}

// live shows the writes as they happen.
func (v *visit) live(_ []string) error {
	lines, _, err := v.newestEvents("")
	if err := v.refuse(err); err != nil {
		return err
	}
	return v.showPanel("live", v.T("Live events"), panel{Log: &liveLog{v.T("Events"), "/console/live/events", lines}, Links: []navItem{{Name: v.T("Subscriptions"), Path: "/console/subscriptions"}}})
}

// liveEvery is how often a live view looks for events, and whether the session is still open.
const liveEvery = time.Second

// liveEvents streams the writes as server-sent events until the session or the server ends.
func (v *visit) liveEvents(_ []string) error {
	_, since, err := v.newestEvents("")
	if err != nil {
		return err
	}
	ctx, done, err := v.c.Streams.Open(v.x, v.r)
	if err != nil {
		return err
	}
	defer done()
	v.screen = "events"
	v.x.Header().Set("Content-Type", "text/event-stream")
	v.x.WriteHeader(http.StatusOK)
	v.x.Flush()
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	end := func() {
		fmt.Fprint(v.x, "event: end\ndata: end\n\n")
		v.x.Flush()
	}
	for {
		select {
		case <-ctx.Done():
			end()
			return nil
		case <-tick.C:
		}
		if v.c.Auth != nil {
			session, err := v.c.Auth.VisitConsole(ctx, v.cookie, v.c.Settings().Times, false)
			if err != nil || !session.Principal.Admin {
				end()
				return nil //nolint:nilerr // the stream is the answer
			}
		}
		var lines []string
		if lines, since, err = v.newestEvents(since); err != nil {
			end()
			return nil //nolint:nilerr // the stream is the answer
		}
		slices.Reverse(lines)
		for _, line := range lines {
			fmt.Fprintf(v.x, "event: line\ndata: %s\n\n", strings.NewReplacer("\r", " ", "\n", " ").Replace(line))
		}
		if len(lines) == 0 {
			fmt.Fprint(v.x, ": alive\n\n")
		}
		v.x.Flush()
	}
}

// moreTabs are tabs that some types have.
func (v *visit) moreTabs(typ, at string) []navItem {
	if !v.Admin() {
		return nil
	}
	switch typ {
	case "Subscription":
		return []navItem{{Name: "Deliveries", Path: at + "/deliveries"}}
	case "App":
		return []navItem{{Name: "Run", Path: at + "/run"}}
	}
	return nil
}

// fillMoreAttention names dead letters and failed jobs.
func (v *visit) fillMoreAttention(p *overviewPage) error {
	dead, err := v.deadLetters()
	if err != nil {
		return err
	}
	var names []string
	for name := range dead {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names[:min(len(names), 20)] {
		link := "/console/" + name + "/deliveries"
		if app, ok := strings.CutPrefix(name, "App/"); ok {
			id, _, _ := strings.Cut(app, "/")
			link = "/console/App/" + escape(id) + "/deliveries"
		}
		p.Attention = append(p.Attention, attention{v.plural(dead[name], "%s has 1 dead letter", "%s has %s dead letters", name), link})
	}
	var jobs []job
	if err := v.get("/admin/jobs?state=failed", &jobs); err != nil {
		return err
	}
	for _, j := range jobs[:min(len(jobs), 10)] {
		p.Attention = append(p.Attention, attention{v.T("The job %s has failed: %s", j.ID, clipText(j.Failure)), "/console/jobs"})
	}
	return nil
}
