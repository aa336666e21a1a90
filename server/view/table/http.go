package table

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/outcome"
	"kiln/server/web"
)

// Admin serves /admin/views. Its fields are set before Mount.
type Admin struct {
	Service *Service
	Base    func(r *http.Request) string // FHIR base of a request
	// Changed is called after each change that an administrator has made.
	Changed func(ctx context.Context, r *http.Request, x *web.Exchange, what, to string)
}

// maxDocument bounds the body of a request, in bytes.
const maxDocument = 64 << 10

// Mount serves the paths, to administrators.
func (a *Admin) Mount(m *web.Mux) {
	handle := func(pattern string, do func(x *web.Exchange, r *http.Request, name string) error) {
		m.HandleFunc(web.Admin, pattern, func(w http.ResponseWriter, r *http.Request) {
			x := web.ExchangeOf(w)
			x.Header().Set("Cache-Control", "no-store")
			err := error(outcome.NotImplemented("views are switched off (views.enabled)"))
			if a.Service.Enabled(r.Context()) {
				err = do(x, r, strings.ToLower(r.PathValue("name")))
			}
			if err != nil {
				x.Fail(r, err)
			}
		})
	}
	pool := a.Service.pool()
	handle("GET /admin/views", func(x *web.Exchange, r *http.Request, _ string) error {
		list, err := List(r.Context(), pool)
		if err != nil {
			return err
		}
		if list == nil {
			list = []*Table{}
		}
		x.SendJSON(r, http.StatusOK, map[string]any{"views": list})
		return nil
	})
	handle("POST /admin/views", a.create)
	handle("GET /admin/views/{name}", func(x *web.Exchange, r *http.Request, name string) error {
		t, err := Get(r.Context(), pool, name)
		if err == nil {
			x.SendJSON(r, http.StatusOK, t)
		}
		return err
	})
	handle("GET /admin/views/{name}/problems", func(x *web.Exchange, r *http.Request, name string) error {
		list, err := Problems(r.Context(), pool, name)
		if err == nil {
			x.SendJSON(r, http.StatusOK, map[string]any{"problems": list})
		}
		return err
	})
	handle("DELETE /admin/views/{name}", func(x *web.Exchange, r *http.Request, name string) error {
		if err := Drop(r.Context(), pool, name); err != nil {
			return err
		}
		a.Service.Wake()
		a.Changed(r.Context(), r, x, "table view."+name, "dropped")
		x.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// create answers 202 with a table that a server builds.
func (a *Admin) create(x *web.Exchange, r *http.Request, _ string) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxDocument+1))
	if err != nil {
		return outcome.New(outcome.CodeStructure, "the body could not be read to its end").Because(err)
	}
	if len(body) > maxDocument {
		return outcome.New(outcome.CodeTooLong, "the body is larger than %d bytes", maxDocument)
	}
	var document struct {
		View    string     `json:"view"`
		Indexes [][]string `json:"indexes"`
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&document); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return outcome.New(outcome.CodeStructure, "the body is no JSON object").Because(err)
		}
		return outcome.Invalid(`expected {"view": "ViewDefinition/x", "indexes": [["column"]]}: %s`, strings.TrimPrefix(err.Error(), "json: "))
	}
	if document.View == "" {
		return outcome.New(outcome.CodeRequired, "view is missing: expected ViewDefinition/id").At("view")
	}
	t, err := Create(r.Context(), a.Service.pool(), document.View, a.Base(r), document.Indexes)
	if err != nil {
		return err
	}
	a.Service.Wake()
	a.Changed(r.Context(), r, x, "table view."+t.Name, "built from "+t.View)
	x.Header().Set("Location", x.Prefix+"/admin/views/"+t.Name)
	x.SendJSON(r, http.StatusAccepted, t)
	return nil
}

// tableMetrics are the metrics of the tables in the database.
type tableMetrics struct{ s *Service }

var (
	lagDescription      = prometheus.NewDesc("service_view_table_lag_seconds", "Age of the moment that the table of a view shows.", []string{"view"}, nil)
	rowsDescription     = prometheus.NewDesc("service_view_table_rows", "Rows of the table of a view.", []string{"view"}, nil)
	problemsDescription = prometheus.NewDesc("service_view_table_problems", "Resources without rows in the table of a view, because of an error.", []string{"view"}, nil)
)

// Describe implements prometheus.Collector.
func (m *tableMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- lagDescription
	out <- rowsDescription
	out <- problemsDescription
}

// Collect implements prometheus.Collector.
func (m *tableMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	rows, err := m.s.pool().Query(ctx, `SELECT f.name, coalesce(greatest(0, extract(epoch FROM now() - f.current_to)), 0)::float8, f.rows::float8, coalesce(g.problems, 0)::float8
		FROM view._table f LEFT JOIN view_generation g ON g.name = f.name AND g.state = 'shown'`)
	if err == nil {
		defer rows.Close()
		for rows.Next() {
			var name string
			var values [3]float64
			if err = rows.Scan(&name, &values[0], &values[1], &values[2]); err != nil {
				break
			}
			for i, d := range []*prometheus.Desc{lagDescription, rowsDescription, problemsDescription} {
				out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, values[i], name)
			}
		}
		err = errors.Join(err, rows.Err())
	}
	if err != nil {
		m.s.Logger.Warn("measure the tables of views", slog.Any("error", err))
	}
}
