package subscription

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/notify/matching"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// A Topic is the supported part of a SubscriptionTopic.
// Spec: https://hl7.org/fhir/R4B/subscriptiontopic.html.
type Topic struct {
	URL     string `json:"url"`
	Version string `json:"version"`
	Status  string `json:"status"`
	Trigger []struct {
		Resource     string   `json:"resource"`
		Interactions []string `json:"supportedInteraction"`
		Query        *struct {
			Previous        string `json:"previous"`
			ResultForCreate string `json:"resultForCreate"`
			Current         string `json:"current"`
			ResultForDelete string `json:"resultForDelete"`
			RequireBoth     bool   `json:"requireBoth"`
		} `json:"queryCriteria"`
		FHIRPath string `json:"fhirPathCriteria"`
	} `json:"resourceTrigger"`
	Filters []struct {
		Resource  string   `json:"resource"`
		Parameter string   `json:"filterParameter"`
		Modifiers []string `json:"modifier"`
	} `json:"canFilterBy"`
	Shape []topicShape `json:"notificationShape"`
}

// topicShape lists the resources that a notification contains beside a resource of one type.
type topicShape struct {
	Resource   string   `json:"resource"`
	Include    []string `json:"include"`
	RevInclude []string `json:"revInclude"`
}

// typeOf is a resource type of its name or of the canonical of its definition.
func typeOf(uri string) string {
	return strings.TrimPrefix(uri, "http://hl7.org/fhir/StructureDefinition/")
}

// WithTopics returns a context in which each topic is read once.
func WithTopics(ctx context.Context) context.Context {
	return context.WithValue(ctx, topicsKey{}, make(map[string]*Topic))
}

type topicsKey struct{}

// findTopic returns the topic of a canonical, with or without a version; nil where
// there is none in force.
func (s *Reader) findTopic(ctx context.Context, canonical string) (*Topic, error) {
	read, _ := ctx.Value(topicsKey{}).(map[string]*Topic)
	if t, ok := read[canonical]; ok {
		return t, nil
	}
	t, err := s.searchTopic(ctx, canonical)
	if err == nil && read != nil {
		read[canonical] = t
	}
	return t, err
}

// searchTopic finds a topic by the search index. While that is being rebuilt it may lack the topic:
// then searchTopic reads all topics.
func (s *Reader) searchTopic(ctx context.Context, canonical string) (*Topic, error) {
	address, _, _ := strings.Cut(canonical, "|")
	t, err := s.scanTopics(ctx, canonical, url.Values{"url": {address}})
	if t != nil && err == nil {
		return t, nil
	}
	return s.scanTopics(ctx, canonical, url.Values{})
}

// scanTopics returns the topic of a canonical that was changed last, of those that a search finds;
// nil where none is in force.
func (s *Reader) scanTopics(ctx context.Context, canonical string, values url.Values) (last *Topic, err error) {
	var changed time.Time
	err = s.eachTopic(ctx, values, func(t *Topic, at time.Time) {
		if t.is(canonical) && !at.Before(changed) {
			last, changed = t, at
		}
	})
	return last, err
}

// eachTopic calls f for each topic that a search finds, with the instant of its last change.
func (s *Reader) eachTopic(ctx context.Context, values url.Values, f func(t *Topic, changed time.Time)) error {
	const page = 200
	values.Set("_count", strconv.Itoa(page))
	values.Set("_total", "none")
	for {
		q, err := search.Parse(s.Interactions.Parameters.Current(), "SubscriptionTopic", values, search.Options{MaxCount: page})
		if err != nil {
			return err
		}
		found, err := s.Store.Search(ctx, q)
		if err != nil {
			return err
		}
		for _, v := range found.Matches {
			t := new(Topic)
			if err := json.Unmarshal(v.Body, t); err == nil {
				f(t, v.LastUpdated)
			}
		}
		if !found.HasNext {
			return nil
		}
		values.Set("_cursor", found.Last)
	}
}

// knownTopics are the canonicals of the topics in force, as they were read last.
type knownTopics struct {
	mu   sync.Mutex
	list []string
	read time.Time // zero: to be read
}

// topicsAge is how old knownTopics may be: another server may have written a topic.
const topicsAge = 2 * time.Second

// ForgetTopics makes the next call of Topics read them anew.
func (s *Reader) ForgetTopics() {
	s.topics.mu.Lock()
	defer s.topics.mu.Unlock()
	s.topics.read = time.Time{}
}

// Topics returns the canonicals of the topics in force, sorted.
func (s *Reader) Topics(ctx context.Context) ([]string, error) {
	k := &s.topics
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.read) < topicsAge {
		return k.list, nil
	}
	began := time.Now()
	var list []string
	err := s.eachTopic(ctx, url.Values{}, func(t *Topic, _ time.Time) {
		if t.is(t.URL) {
			list = append(list, t.URL)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(list)
	k.list, k.read = slices.Compact(list), began
	return k.list, nil
}

// is reports whether a topic is in force and has a canonical, with or without a version.
func (t *Topic) is(canonical string) bool {
	address, version, _ := strings.Cut(canonical, "|")
	return t.URL == address && (version == "" || t.Version == version) && (t.Status == "active" || t.Status == "draft")
}

// compileTopic makes the rules of a subscription of its topic.
func (s *Reader) compileTopic(ctx context.Context, c *Subscription, filters []filterBy, element string) error {
	t, err := s.findTopic(ctx, c.Topic)
	if err != nil {
		return err
	}
	at := "Subscription.topic"
	if c.Backport {
		at = "Subscription.criteria"
	}
	if t == nil {
		return Unprocessable(at, outcome.CodeNotFound, "there is no SubscriptionTopic %q in force", outcome.Clip(c.Topic))
	}
	if c.Rules, err = s.topicRules(ctx, t); err != nil {
		return RefuseCriteria(err, at)
	}
	for i := range t.Shape {
		known, err := s.knownIncludes(ctx, &t.Shape[i])
		if err != nil {
			return RefuseCriteria(err, at)
		}
		c.Include = append(c.Include, known...)
	}
	return s.applyFilters(ctx, c, filters, element, func(typ, parameter, modifier string) bool {
		for _, f := range t.Filters {
			if f.Parameter == parameter && (f.Resource == "" || typeOf(f.Resource) == typ) {
				return modifier == "" || len(f.Modifiers) == 0 || slices.Contains(f.Modifiers, modifier)
			}
		}
		return false
	})
}

// topicRules are the rules of a topic's triggers.
func (s *Reader) topicRules(ctx context.Context, t *Topic) ([]matching.Rule, error) {
	var rules []matching.Rule
	for _, trigger := range t.Trigger {
		typ := typeOf(trigger.Resource)
		if s.Interactions.Model.Resources[typ] == nil {
			return nil, s.Interactions.UnknownType(typ)
		}
		kinds, err := matching.ParseKinds(trigger.Interactions)
		if err != nil {
			return nil, err
		}
		r := matching.Rule{ResourceType: typ, Kinds: kinds}
		if q := trigger.Query; q != nil {
			r.Both, r.Created, r.Deleted = q.RequireBoth, q.ResultForCreate == "test-passes", q.ResultForDelete == "test-passes"
			if q.Current != "" {
				if r.Current, err = s.Evaluator.ParseCriteria(ctx, typ, strings.TrimPrefix(q.Current, typ+"?")); err != nil {
					return nil, err
				}
			}
			if q.Previous != "" {
				if r.Previous, err = s.Evaluator.ParseCriteria(ctx, typ, strings.TrimPrefix(q.Previous, typ+"?")); err != nil {
					return nil, err
				}
			}
		}
		if trigger.FHIRPath != "" {
			if r.Test, err = s.pathTest(trigger.FHIRPath); err != nil {
				return nil, err
			}
		}
		rules = append(rules, r)
	}
	if len(rules) == 0 {
		return nil, outcome.Invalid("the topic %s has no resourceTrigger", t.URL)
	}
	return rules, nil
}

// CheckTopics refuses SubscriptionTopics that cannot be carried out.
func (s *Reader) CheckTopics(ctx context.Context, _ *store.Tx, ws []*store.Write) error {
	for i, w := range ws {
		var err error
		switch modify := w.Modify; {
		case w.Method == fhir.DELETE:
		case modify != nil:
			w.Modify = func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
				body, index, err := modify(current)
				if err == nil {
					err = s.checkTopic(ctx, body.Render(nil, w.ID, 1, time.Unix(0, 0)))
				}
				return body, index, err
			}
		default:
			err = s.checkTopic(ctx, w.Body.Render(nil, w.ID, 1, time.Unix(0, 0)))
		}
		if err != nil {
			return &store.WriteError{Index: i, Err: err}
		}
	}
	return nil
}

// checkTopic refuses a topic, unless it is retired, whose triggers or shape a Subscription
// could not use. It fails with the words of a search, 422.
func (s *Reader) checkTopic(ctx context.Context, body []byte) error {
	t := new(Topic)
	if err := json.Unmarshal(body, t); err != nil {
		return outcome.New(outcome.CodeStructure, "the topic cannot be read: %s", outcome.JSONProblem(err))
	}
	if t.Status == "retired" {
		return nil
	}
	if _, err := s.topicRules(ctx, t); err != nil {
		return RefuseCriteria(err, "SubscriptionTopic.resourceTrigger")
	}
	for _, shape := range t.Shape {
		if typ := typeOf(shape.Resource); s.Interactions.Model.Resources[typ] == nil {
			return RefuseCriteria(s.Interactions.UnknownType(typ), "SubscriptionTopic.notificationShape.resource")
		}
		if _, err := s.knownIncludes(ctx, &shape); err != nil {
			return RefuseCriteria(err, "SubscriptionTopic.notificationShape")
		}
	}
	return nil
}

// knownIncludes returns the _include and _revinclude parameters of a shape that this server has. It
// leaves out a parameter of another release, such as Encounter:observation in R4B's own example.
// It fails with invalid where the text is no Type:parameter of a type that the server has.
func (s *Reader) knownIncludes(ctx context.Context, shape *topicShape) ([]string, error) {
	var known []string
	for _, list := range []struct {
		name  string
		texts []string
	}{{"_include", shape.Include}, {"_revinclude", shape.RevInclude}} {
		for _, text := range list.texts {
			text, _, _ = strings.Cut(text, "&") // the Backport IG's examples add &iterate=
			_, err := search.Parse(s.Interactions.Parameters.Current(), typeOf(shape.Resource), url.Values{list.name: {text}}, s.Interactions.SearchOptions(ctx, false, nil))
			if err == nil {
				known = append(known, list.name+"="+text)
				continue
			}
			typ, parameter, _ := strings.Cut(text, ":")
			parameter, _, _ = strings.Cut(parameter, ":")
			if s.Interactions.Model.Resources[typ] == nil || parameter == "" || s.hasParameter(typ, parameter) {
				return nil, err
			}
		}
	}
	return known, nil
}

// hasParameter reports whether a resource type has a search parameter.
func (s *Reader) hasParameter(typ, code string) bool {
	_, ok := s.Interactions.Parameters.Current().Lookup(typ, code)
	return ok
}

// pathTest is a fhirPathCriteria: %current and %previous are the versions, where there
// are such, and the focus is the one that the event is about.
// Spec: https://hl7.org/fhir/R4B/subscriptiontopic-definitions.html#SubscriptionTopic.resourceTrigger.fhirPathCriteria.
func (s *Reader) pathTest(expression string) (func(ctx context.Context, e *matching.Event) bool, error) {
	program, err := fhirpath.Compile(expression, fhirpath.Options{Model: s.Interactions.Model, Variables: []string{"current", "previous"}})
	if err != nil {
		return nil, outcome.Invalid("the expression %q of the topic cannot be read: %v", outcome.Clip(expression), err)
	}
	return func(ctx context.Context, e *matching.Event) bool {
		current, previous := s.Evaluator.DecodeVersions(e)
		env := map[string]fhirpath.Collection{"current": nil, "previous": nil}
		var focus fhir.Node
		if r := previous; r != nil {
			focus = fhir.NodeOf(r)
			env["previous"] = fhirpath.Collection{fhirpath.NodeValue(focus)}
		}
		if r := current; r != nil {
			focus = fhir.NodeOf(r)
			env["current"] = fhirpath.Collection{fhirpath.NodeValue(focus)}
		}
		if focus.T == nil {
			return false
		}
		holds, err := program.Test(&fhirpath.Context{Context: ctx, Env: env}, focus)
		if err != nil {
			s.Log.Warn("the expression of a subscription topic cannot be evaluated", "expression", expression, "error", err)
		}
		return holds
	}, nil
}

// DecodeTopic reads a topic; the zero topic where there is none.
func DecodeTopic(body []byte) Topic {
	var t Topic
	_ = json.Unmarshal(body, &t) // checked when it was written
	return t
}
