package app

import (
	"encoding/json"

	"kiln/server/fhir"
)

// handlerContext is the context of a handler. The contract, Apps section 3.
type handlerContext struct {
	Operation    string
	Type         string
	ResourceType string
	ResourceID   string
	Resource     json.RawMessage
	Parameters   json.RawMessage
	Query        map[string]any // a text, or several, by name
	User         user
	Client       string
	Patient      string
	App          appName
	RequestID    string
	// RawParameters are FHIR Parameters as they came.
	RawParameters json.RawMessage
	// Of an event.
	Event        string
	VersionID    string
	Previous     json.RawMessage
	Notification string
	Subscription string
}

type user struct {
	ID       string
	FHIRUser string
	Roles    []string
}

type appName struct{ ID, Version string }

// json returns the context as JSON, with the same members for all handlers: an absent member is null, but parameters,
// query and roles never are. Only events have the members of events. Resources are included as stored.
func (c *handlerContext) json(resource json.RawMessage) ([]byte, error) {
	o := jsonObject{b: make([]byte, 0, 512+len(resource)+len(c.Parameters)+len(c.RawParameters)+len(c.Previous))}
	o.text("operation", c.Operation)
	o.text("type", c.Type)
	o.text("resourceType", c.ResourceType)
	o.text("resourceId", c.ResourceID)
	o.raw("resource", resource, "null")
	o.raw("parameters", c.Parameters, "{}")
	query, roles := []byte(nil), []byte(nil)
	var err error
	if len(c.Query) > 0 {
		if query, err = json.Marshal(c.Query); err != nil {
			return nil, err
		}
	}
	if len(c.User.Roles) > 0 {
		if roles, err = json.Marshal(c.User.Roles); err != nil {
			return nil, err
		}
	}
	o.raw("query", query, "{}")
	var by jsonObject
	by.text("id", c.User.ID)
	by.text("fhirUser", c.User.FHIRUser)
	by.raw("roles", roles, "[]")
	o.raw("user", by.end(), "")
	o.text("client", c.Client)
	o.text("patient", c.Patient)
	o.raw("app", c.App.json(), "")
	o.text("requestId", c.RequestID)
	if len(c.RawParameters) > 0 {
		o.raw("rawParameters", c.RawParameters, "")
	}
	if c.Event != "" {
		o.text("event", c.Event)
		o.text("versionId", c.VersionID)
		if len(c.Previous) > 0 {
			o.raw("previous", c.Previous, "")
		}
		o.text("notificationId", c.Notification)
		o.text("subscription", c.Subscription)
	}
	return o.end(), nil
}

func (a appName) json() []byte {
	var o jsonObject
	o.text("id", a.ID)
	o.text("version", a.Version)
	return o.end()
}

// jsonObject is the JSON of an object, written member by member.
type jsonObject struct{ b []byte }

func (o *jsonObject) name(name string) {
	c := byte(',')
	if len(o.b) == 0 {
		c = '{'
	}
	o.b = append(fhir.AppendString(append(o.b, c), name), ':')
}

// text adds a text, null where it is empty.
func (o *jsonObject) text(name, value string) {
	if o.name(name); value == "" {
		o.b = append(o.b, "null"...)
		return
	}
	o.b = fhir.AppendString(o.b, value)
}

// raw adds JSON, none where it is empty.
func (o *jsonObject) raw(name string, value []byte, none string) {
	if o.name(name); len(value) == 0 {
		o.b = append(o.b, none...)
		return
	}
	o.b = append(o.b, value...)
}

func (o *jsonObject) end() []byte { return append(o.b, '}') }
