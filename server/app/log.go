package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/app/journal"
	"kiln/server/app/sandbox"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// logName is the operation that shows the log of an App.
const logName = "$log"

// logEntry is an invocation as $log shows it.
type logEntry struct {
	ID           string         `json:"id"`
	At           string         `json:"at"`
	Operation    string         `json:"operation,omitempty"`
	Subscription string         `json:"subscription,omitempty"`
	ResourceType string         `json:"resourceType"`
	ResourceID   string         `json:"resourceId,omitempty"`
	DurationMS   json.Number    `json:"durationMs"`
	Outcome      string         `json:"outcome"`
	Status       int            `json:"status"`
	RequestID    string         `json:"requestId,omitempty"`
	Lines        []sandbox.Line `json:"lines"`
}

const (
	logCount    = 50
	maxLogCount = 1000
)

// isLogCall reports whether an operation is GET /App/{id}/$log.
func isLogCall(q interaction.OperationParams) bool {
	return q.ResourceType == "App" && q.Name == logName && q.ID != "" && !q.Bundled
}

// parseLogQuery reads the parameters of $log, and the number of entries of a page.
func parseLogQuery(q interaction.OperationParams) (params db.AppInvocationsParams, count int, err error) {
	params = db.AppInvocationsParams{App: q.ID, Since: time.Unix(0, 0), Before: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), BeforeID: pgtype.UUID{Valid: true}}
	count = logCount
	for name, list := range q.Values {
		text := list[len(list)-1]
		switch name {
		case "_count":
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return params, 0, outcome.Invalid("_count is %q: expected a number above 0", clip(text))
			}
			count = min(n, maxLogCount)
		case "_since":
			low, _, err := fhir.ParseDate(strings.Replace(text, " ", "+", 1))
			if err != nil {
				return params, 0, outcome.Invalid("_since is %q: expected an instant", clip(text))
			}
			params.Since = time.UnixMicro(low)
		case "level":
			if params.Level = journal.NumberOfLevel(text); params.Level == 0 {
				return params, 0, outcome.Invalid("level is %q: expected %s", clip(text), strings.Join(journal.Levels, ", "))
			}
		case "_cursor":
			at, id, ok := strings.Cut(text, "_")
			micros, err := strconv.ParseInt(at, 10, 64)
			key, err2 := uuid.Parse(id)
			if !ok || err != nil || err2 != nil {
				return params, 0, outcome.Invalid("_cursor is not one that this server has given out")
			}
			params.Before, params.BeforeID = time.UnixMicro(micros), pgtype.UUID{Bytes: key, Valid: true}
		case "_format", "_pretty":
		default:
			return params, 0, outcome.Invalid("%s takes _since, _count and level, not %q", logName, clip(name))
		}
	}
	return params, count, nil
}

// answerLog answers GET /App/{id}/$log. docs/contract.md, Apps, section 6.
func (p *Platform) answerLog(ctx context.Context, q interaction.OperationParams) (interaction.Response, error) {
	if !q.Read {
		return interaction.Response{}, outcome.MethodNotAllowed("%s is called by GET", logName)
	}
	if err := p.Service.CheckAllowed(ctx, access.Read, "App", q.ID); err != nil {
		return interaction.Response{}, err
	}
	if _, err := p.Service.Read(ctx, interaction.ReadParams{ResourceType: "App", ID: q.ID}); err != nil {
		return interaction.Response{}, err
	}
	params, count, err := parseLogQuery(q)
	if err != nil {
		return interaction.Response{}, err
	}
	params.Count = int32(count) + 1
	rows, err := db.New(p.Store.Pool()).AppInvocations(ctx, params)
	if err != nil {
		return interaction.Response{}, err
	}
	out := struct {
		Invocations []logEntry `json:"invocations"`
		Next        *string    `json:"next"`
	}{Invocations: []logEntry{}}
	if len(rows) > count {
		last := rows[count-1]
		next := url.Values{}
		for name, list := range q.Values {
			next[name] = slices.Clone(list)
		}
		next.Set("_cursor", strconv.FormatInt(last.At.UnixMicro(), 10)+"_"+uuid.UUID(last.ID.Bytes).String())
		at := "/App/" + q.ID + "/" + logName + "?" + next.Encode()
		out.Next = &at
		rows = rows[:count]
	}
	for _, r := range rows {
		e := logEntry{ID: uuid.UUID(r.ID.Bytes).String(), At: r.At.UTC().Format(time.RFC3339Nano), Operation: r.Operation, Subscription: r.Subscription,
			ResourceType: r.ResourceType, ResourceID: r.ResourceID, DurationMS: json.Number(strconv.FormatFloat(float64(r.DurationUs)/1000, 'f', -1, 64)),
			Outcome: r.Outcome, Status: int(r.Status), RequestID: r.RequestID, Lines: []sandbox.Line{}}
		if err := json.Unmarshal(r.Lines, &e.Lines); err != nil {
			return interaction.Response{}, err
		}
		out.Invocations = append(out.Invocations, e)
	}
	body, err := json.Marshal(out)
	return interaction.Response{Status: http.StatusOK, Body: body, ContentType: "application/json"}, err
}

// keptInvocations bounds the log of one App.
const keptInvocations = 100_000

// deleteOldLogs deletes records older than their retention, until ctx ends.
func (p *Platform) deleteOldLogs(ctx context.Context) {
	tick := time.NewTicker(10 * time.Minute)
	defer tick.Stop()
	for {
		if err := p.Retain(ctx); err != nil && ctx.Err() == nil {
			p.Logger.Warn("delete the old log of Apps", slog.Any("error", err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Retain deletes log entries from before Config.LogRetention, entries of an App beyond 100,000, and the authors of
// versions that are no longer events.
func (p *Platform) Retain(ctx context.Context) error {
	q := db.New(p.Store.Pool())
	if _, err := q.TrimAppInvocations(ctx, db.TrimAppInvocationsParams{Before: p.Now().Add(-p.Config().LogRetention), Keep: keptInvocations}); err != nil {
		return err
	}
	_, err := q.TrimAppChains(ctx, p.Now().Add(-chainRetention))
	return err
}

// chainRetention is how long it is known who wrote a version: longer than an event waits
// to be matched.
const chainRetention = 30 * 24 * time.Hour
