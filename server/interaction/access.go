package interaction

import (
	"context"
	"log/slog"
	"slices"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/smart"
	"kiln/server/store"
)

// checkAllowed asks access about an interaction, after making sure that the type is one
// of the model's. With typ "" it asks whether there is a principal, and for Admin
// whether it has that scope.
func (s *Service) checkAllowed(ctx context.Context, i access.Interaction, typ, id string) error {
	if typ != "" && s.Model.Resources[typ] == nil {
		return s.UnknownType(typ)
	}
	if typ == "AuditEvent" && (i == access.Update || i == access.Patch || i == access.Delete) {
		return auditEventUnchangeable()
	}
	rights, err := s.Access.Rights(ctx)
	switch {
	case err != nil || rights == nil:
		return err
	case i == access.Admin:
		return rights.MayAdmin()
	case typ == "" || i.Permission() == 0:
		return nil
	}
	return rights.Check(i.Permission(), typ)
}

// mayFind is may for an interaction whose answer can be empty. Refusals of a policy under
// dry run are counted here.
func (s *Service) mayFind(ctx context.Context, i access.Interaction, typ, id string) error {
	if err := s.checkAllowed(ctx, i, typ, id); err != nil || typ == "" {
		return err
	}
	rights, err := s.Access.Rights(ctx)
	if err != nil || rights == nil {
		return err
	}
	for _, d := range rights.DryRunsOfType(i.Permission(), typ) {
		s.wouldDeny(ctx, rights, d, i.Permission(), typ, id)
	}
	return nil
}

// mayAny is may for an interaction about every type: it fails if the request may ask for
// none of them.
func (s *Service) mayAny(ctx context.Context, i access.Interaction) error {
	rights, err := s.Access.Rights(ctx)
	if err != nil || rights == nil {
		return err
	}
	return rights.MayAny(i.Permission())
}

// VisibleReader is from as the request sees it: what its token cannot read is absent. A
// search finds what may be searched.
func (s *Service) VisibleReader(ctx context.Context, from Reader) (Reader, error) {
	if _, ok := from.(*seen); ok {
		return from, nil
	}
	return s.SeenBy(ctx, from, smart.Search)
}

// SeenBy is Seen with the permissions that the matches of a search need.
func (s *Service) SeenBy(ctx context.Context, from Reader, matches smart.Permissions) (Reader, error) {
	rights, err := s.Access.Rights(ctx)
	if err != nil || rights == nil {
		return from, err
	}
	if inner, ok := from.(*seen); ok {
		from = inner.from
	}
	return &seen{s: s, from: from, rights: rights, matches: matches}, nil
}

// seen is a Reader without hidden resources.
type seen struct {
	s       *Service
	from    Reader
	rights  *access.Rights
	matches smart.Permissions
}

// holds reports whether c holds for a version that has content.
func (s *Service) holds(c access.Condition, v fhir.Version) (bool, error) {
	switch {
	case c.None():
		return false, nil
	case c.Whole():
		return true, nil
	}
	r, err := fhir.Decode(s.Model, v.Body)
	if err != nil {
		return false, err
	}
	// A search parameter that fails on a stored resource is no part of the condition.
	x, err := s.Parameters.Index(v.ID, r)
	if x == nil {
		return false, err
	}
	defer s.Parameters.Recycle(x)
	return c.Holds(&match.Resource{Type: v.ResourceType, ID: v.ID, LastUpdated: v.LastUpdated, Index: x})
}

// sees reports whether a version may be read; of a deletion, whether the deleted version
// may be.
func (v *seen) sees(ctx context.Context, version fhir.Version) (bool, error) {
	c, err := v.rights.Condition(smart.Read, version.ResourceType)
	if err != nil || c.None() || c.Whole() {
		return c.Whole() && err == nil, err
	}
	return v.s.holdsBefore(ctx, v.from, c, version)
}

// holdsBefore is holds, of a deletion for the version before.
func (s *Service) holdsBefore(ctx context.Context, from Reader, c access.Condition, version fhir.Version) (bool, error) {
	if version.Deleted() {
		before, err := from.VRead(ctx, version.ResourceType, version.ID, version.VersionID-1)
		if outcome.Theirs(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		version = before
	}
	return s.holds(c, version)
}

// conditionalReader is a Reader whose query of a read can ask a condition as well.
type conditionalReader interface {
	ReadIf(ctx context.Context, typ, id string, test match.TermTest) (fhir.Version, error)
}

// readUnder reads under a condition; decided is false where it is still to be asked of what
// was found.
func (v *seen) readUnder(ctx context.Context, c access.Condition, typ, id string) (found fhir.Version, decided bool, err error) {
	if test, ok := c.TermTest(typ, id); ok {
		if from, ok := v.from.(conditionalReader); ok {
			found, err = from.ReadIf(ctx, typ, id, test)
			return found, true, err
		}
	}
	found, err = v.from.Read(ctx, typ, id)
	return found, c.Whole(), err
}

func (v *seen) Read(ctx context.Context, typ, id string) (fhir.Version, error) {
	c, err := v.rights.Condition(smart.Read, typ)
	if err != nil {
		return fhir.Version{}, err
	}
	found, decided, err := v.readUnder(ctx, c, typ, id)
	last := found
	if outcome.Is(err, outcome.CodeDeleted) {
		page, err := v.from.History(ctx, store.HistoryQuery{ResourceType: typ, ID: id, Count: 1, NoTotal: true})
		if err != nil || len(page.Versions) == 0 {
			return fhir.Version{}, err
		}
		last = page.Versions[0]
	} else if err != nil {
		return found, err
	}
	if err != nil || !decided {
		switch ok, failed := v.sees(ctx, last); {
		case failed != nil:
			return fhir.Version{}, failed
		case !ok: // decoding has taken as long as the statement that looks for an absent one
			return fhir.Version{}, outcome.NotFound(typ, id)
		}
	}
	if err != nil {
		return found, err
	}
	v.s.dryRun(ctx, v.rights, smart.Read, found)
	return v.s.maskVersion(ctx, found)
}

// dryRun counts and logs what policies under dry run would have denied.
func (s *Service) dryRun(ctx context.Context, rights *access.Rights, permission smart.Permissions, v fhir.Version) {
	for _, d := range rights.DryRuns(permission, v.ResourceType) {
		if ok, err := s.holds(d.Condition, v); err == nil && ok {
			s.wouldDeny(ctx, rights, d, permission, v.ResourceType, v.ID)
		}
	}
}

func (s *Service) wouldDeny(ctx context.Context, rights *access.Rights, d access.DryRun, permission smart.Permissions, typ, id string) {
	s.logger().LogAttrs(ctx, slog.LevelInfo, "a policy under dry run would deny", slog.String("policy", d.Policy.Name),
		slog.String("subject", rights.Subject), slog.String("client", rights.ClientID), slog.String("permission", permission.String()),
		slog.String("resource", typ+"/"+id), slog.Int64("denied", d.Count()))
}

func (v *seen) VRead(ctx context.Context, typ, id string, versionID int) (fhir.Version, error) {
	found, err := v.from.VRead(ctx, typ, id, versionID)
	version := found
	if outcome.Is(err, outcome.CodeDeleted) {
		version = fhir.Version{ResourceType: typ, ID: id, VersionID: versionID, Method: fhir.DELETE}
	} else if err != nil {
		return found, err
	}
	switch ok, failed := v.sees(ctx, version); {
	case failed != nil:
		return fhir.Version{}, failed
	case !ok:
		return fhir.Version{}, store.NoVersion(typ, id, versionID)
	}
	if err != nil {
		return found, err
	}
	v.s.dryRun(ctx, v.rights, smart.Read, found)
	return v.s.maskVersion(ctx, found)
}

func (v *seen) Search(ctx context.Context, q *search.Query) (*store.SearchResult, error) {
	n, err := v.rights.Narrow(q, v.matches)
	if err != nil {
		return nil, err
	}
	found, err := v.from.Search(ctx, n)
	if err != nil {
		return nil, err
	}
	found.Issues = slices.Concat(found.Issues, n.Notices[len(q.Notices):])
	for _, match := range found.Matches {
		v.s.dryRun(ctx, v.rights, smart.Search, match)
	}
	if err := v.s.Mask(ctx, found.Matches); err != nil {
		return nil, err
	}
	return found, v.s.Mask(ctx, found.Includes)
}

// historyScan bounds how many versions one request decides on. Where they do not
// fill the page, the next page goes on behind them; where they do not reach the end,
// the total is left out.
const (
	historyScan = 10_000
	historyPage = 500
)

// History decides on each version by itself: an index has only the current ones, so
// they are read one after the other.
func (v *seen) History(ctx context.Context, q store.HistoryQuery) (store.HistoryPage, error) {
	permission := smart.Search
	if q.ID != "" {
		permission = smart.Read
	}
	// 1. The page.
	out, total, more, err := v.historyPage(ctx, permission, q)
	if err != nil {
		return store.HistoryPage{}, err
	}
	// 2. The total, of all pages.
	if q.Cursor != "" && (!q.NoTotal || q.ID != "") {
		all := q
		all.Cursor, all.Count, all.NoTotal = "", 0, false
		page, err := v.History(ctx, all)
		if err != nil {
			return store.HistoryPage{}, err
		}
		total, more = page.Total, page.Total < 0
	}
	if q.ID != "" && total == 0 && !more {
		// A version that is hidden at every time never existed, in any period.
		if known, err := v.everSeen(ctx, q); err != nil || !known {
			if err == nil {
				err = outcome.NotFound(q.ResourceType, q.ID)
			}
			return store.HistoryPage{}, err
		}
	}
	if !q.NoTotal && !more {
		out.Total = total
	}
	for _, version := range out.Versions {
		v.s.dryRun(ctx, v.rights, permission, version)
	}
	return out, v.s.Mask(ctx, out.Versions)
}

// historyPage returns the visible versions of a page and its cursors, without a total.
// It counts the visible versions that it has met; more tells that there are others.
func (v *seen) historyPage(ctx context.Context, permission smart.Permissions, q store.HistoryQuery) (out store.HistoryPage, total int, more bool, err error) {
	out.Total = -1
	wanted := max(q.Count, 0)
	newer := store.IsPreviousCursor(q.Cursor)
	var edge string // the cursor of the page that goes on in this direction
	scan, scanned := q, 0
	scan.Count, scan.NoTotal = historyPage, true
	for more = true; more && scanned < historyScan; {
		page, err := v.from.History(ctx, scan)
		if err != nil {
			return store.HistoryPage{}, 0, false, err
		}
		for n := range page.Versions {
			i := n
			if newer { // the nearest to the cursor is the last one
				i = len(page.Versions) - 1 - n
			}
			scanned++
			ok, err := v.mayList(ctx, permission, page.Versions[i])
			if err != nil {
				return store.HistoryPage{}, 0, false, err
			}
			if !ok {
				continue
			}
			total++
			if len(out.Versions) < wanted {
				out.Versions = append(out.Versions, page.Versions[i])
				if edge = page.After(i); newer {
					edge = page.Before(i)
				}
			}
		}
		follow := page.Next
		if newer {
			follow = page.Previous
		}
		if more = follow != ""; more {
			scan.Cursor = follow
		}
		if total > wanted && (q.Cursor != "" || q.NoTotal) {
			break
		}
	}
	switch {
	case wanted == 0 || total <= wanted && !more:
		edge = ""
	case len(out.Versions) < wanted && more:
		edge = scan.Cursor
	}
	var beside string
	if q.Cursor != "" && wanted > 0 {
		if beside, err = store.BesideCursor(q.Cursor); err != nil {
			return store.HistoryPage{}, 0, false, err
		}
	}
	if out.Next, out.Previous = edge, beside; newer {
		slices.Reverse(out.Versions)
		out.Next, out.Previous = beside, edge
	}
	return out, total, more, nil
}

// everSeen reports whether any version of the resource may be read.
func (v *seen) everSeen(ctx context.Context, q store.HistoryQuery) (bool, error) {
	if q.Since.IsZero() && q.At.IsZero() && q.Cursor == "" {
		return false, nil
	}
	page, err := v.History(ctx, store.HistoryQuery{ResourceType: q.ResourceType, ID: q.ID, Count: 1, NoTotal: true})
	return len(page.Versions) > 0, err
}

// mayList reports whether a version belongs into a history.
func (v *seen) mayList(ctx context.Context, permission smart.Permissions, version fhir.Version) (bool, error) {
	c, err := v.rights.Condition(permission, version.ResourceType)
	if err != nil || c.None() || c.Whole() {
		return c.Whole() && err == nil, err
	}
	return v.s.holdsBefore(ctx, v.from, c, version)
}

// guard lets a write of the request pass, or not. It implements store.Guard.
type guard struct {
	s      *Service
	ctx    context.Context
	rights *access.Rights
	typ    string
	update smart.Permissions // changes an existing resource: Update or Delete
	puts   bool              // the write is a PUT: it creates or updates
}

// GuardWrite gives a write the guard of the request, none where it may do everything.
func (s *Service) GuardWrite(ctx context.Context, w *store.Write) error {
	rights, err := s.Access.Rights(ctx)
	if err != nil {
		return err
	}
	if rights != nil {
		g := &guard{s: s, ctx: ctx, rights: rights, typ: w.ResourceType, update: smart.Update, puts: w.Method == fhir.PUT}
		if w.Method == fhir.DELETE {
			g.update = smart.Delete
		}
		w.Guard = g
	}
	if w.ResourceType == "AuditEvent" && w.Method == fhir.PUT {
		w.Guard = appendOnly{inner: w.Guard}
	}
	return nil
}

// Sees reports whether the request can know of a version: it may read, find or change
// it.
func (g *guard) Sees(v fhir.Version) (bool, error) {
	c, err := g.rights.Any(g.update|smart.Read|smart.Search, g.typ)
	if err != nil {
		return false, err
	}
	return g.s.holds(c, v)
}

// Hidden is the error of a write that would create over a resource that the request cannot
// know of: the one thing that cannot be hidden. A token that may not create gets the answer
// for an absent id. A token that knows of no resource of the type lacks the scope to change one.
func (g *guard) Hidden() error {
	if err := g.mayScope(smart.Create); err != nil {
		return err
	}
	c, err := g.rights.Any(g.update|smart.Read|smart.Search, g.typ)
	if err == nil && c.None() {
		err = g.mayScope(g.update)
	}
	if err != nil {
		return err
	}
	return access.OutsideOfReach(g.typ)
}

// mayScope asks about a permission for the type. The error of a PUT names the scope for both
// of its outcomes, so that it does not depend on the existence of the resource.
func (g *guard) mayScope(permission smart.Permissions) error {
	if g.puts {
		return g.rights.MayPut(permission, g.typ)
	}
	return g.rights.Check(permission, g.typ)
}

// May fails where the request may not make of current the version that x is the
// index of; current is nil for one that is created, x for a deletion.
func (g *guard) May(current *fhir.Version, id string, x *fhir.Index) error {
	permission := g.update
	if current == nil {
		permission = smart.Create
	}
	if err := g.mayScope(permission); err != nil {
		return err
	}
	for _, d := range g.rights.DryRuns(permission, g.typ) {
		denied := false // before or after
		if current != nil {
			ok, err := g.s.holds(d.Condition, *current)
			denied = err == nil && ok
		}
		if !denied && x != nil {
			ok, err := d.Holds(&match.Resource{Type: g.typ, ID: id, LastUpdated: g.s.Now(), Index: x})
			denied = err == nil && ok
		}
		if denied {
			g.s.wouldDeny(g.ctx, g.rights, d, permission, g.typ, id)
		}
	}
	c, err := g.rights.Condition(permission, g.typ)
	if err != nil || c.Whole() {
		return err
	}
	ok := true
	if current != nil {
		if ok, err = g.s.holds(c, *current); err != nil {
			return err
		}
	}
	if ok && x != nil {
		if ok, err = c.Holds(&match.Resource{Type: g.typ, ID: id, LastUpdated: g.s.Now(), Index: x}); err != nil {
			return err
		}
	}
	if !ok {
		return access.OutsideOfReach(g.typ)
	}
	return nil
}

// mayUpdate asks for the type alone whether a PUT can be anything: an update, or a
// create. A PUT of an AuditEvent only creates.
func (s *Service) mayUpdate(ctx context.Context, typ, id string) error {
	if typ == "AuditEvent" {
		if err := s.checkAllowed(ctx, access.Create, typ, ""); err != nil {
			return err
		}
		return s.mayAppend(ctx, id)
	}
	err := s.checkAllowed(ctx, access.Update, typ, "")
	if !outcome.Is(err, outcome.CodeForbidden) {
		return err
	}
	if s.checkAllowed(ctx, access.Create, typ, "") == nil {
		return nil
	}
	rights, failure := s.Access.Rights(ctx)
	if failure != nil || rights == nil {
		return err
	}
	return rights.MayPut(smart.Update, typ)
}

// Readable reports whether the request may read a version.
func (s *Service) Readable(ctx context.Context, v fhir.Version) (bool, error) {
	rights, err := s.Access.Rights(ctx)
	if err != nil || rights == nil {
		return err == nil, err
	}
	c, err := rights.Condition(smart.Read, v.ResourceType)
	if err != nil {
		return false, err
	}
	return s.holds(c, v)
}

// hideUnreadable takes the content out of the answer to a write where the request may not
// read it: Prefer return=representation is then minimal.
func (s *Service) hideUnreadable(ctx context.Context, r Response, err error) (Response, error) {
	if err != nil || !r.Written || r.Version.Body == nil {
		return r, err
	}
	ok, err := s.Readable(ctx, r.Version)
	if err != nil {
		return r, err
	}
	if !ok {
		r.Version.Body = nil
		return r, nil
	}
	if rights, err := s.Access.Rights(ctx); err != nil || rights == nil {
		return r, err
	}
	r.Version, err = s.maskVersion(ctx, r.Version)
	return r, err
}
