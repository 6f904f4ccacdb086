// Package event has the Events that people see with `kubectl describe`. A Recorder writes them to the API server.
package event

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Type is Normal or Warning.
type Type string

// The types, as the API spells them.
const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// The reasons that users of kube-proxy know.
const (
	ReasonStarting                  = "Starting"
	FailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck"
	FailedToStartProxierHealthcheck = "FailedToStartProxierHealthcheck"
	FailedToStartMetricServer       = "FailedToStartMetricServer"
	FailedToStartDrainServer        = "FailedToStartDrainServer"
)

// The reasons that kube-proxy does not have.
const (
	ReasonRulesContested       = "RulesContested"
	ReasonRulesUncontested     = "RulesUncontested"
	reasonModeFallback         = "ModeFallback"
	reasonKubeProxyRuns        = "KubeProxyRuns"
	reasonRulesLeft            = "KubeProxyRulesLeft"
	reasonEjected              = "EndpointEjected"
	reasonConfigurationRefused = "ConfigurationRefused"
)

// The actions; the last three are not kube-proxy's.
const (
	actionStart    = "StartKubeProxy"
	actionListen   = "Listen"
	actionProgram  = "Program"
	actionTakeOver = "TakeOver"
	actionReload   = "Reload"
)

// Object is the object of an Event; the zero value is the own Node.
type Object struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// Event is one occurrence.
type Event struct {
	Object

	Type   Type   `json:"type"`
	Reason string `json:"reason"`         // one word, for machines
	Action string `json:"-"`              // one word
	Note   string `json:"note,omitempty"` // for people; cut off at 1,024 bytes

	// Everywhere is set if every node makes the same Event: one object is enough.
	Everywhere bool `json:"-"`

	// Key, if Everywhere, identifies the Event where nodes make it with different
	// objects and notes. Empty: these identify it.
	Key string `json:"-"`
}

// Starting is the Event of the start of the proxy.
func Starting() Event {
	return Event{Type: Normal, Reason: ReasonStarting, Action: actionStart}
}

// ModeFallback is the Event on the own Node that another mode serves in place of the configured one.
func ModeFallback(configured, serving, reason string) Event {
	return warning(reasonModeFallback, actionStart,
		"Mode "+serving+" serves in place of mode "+configured+", which this node does not support: "+reason)
}

// Ejected is the Event of an endpoint of a Service that gets no new connections from the own Node, or of several.
func Ejected(p route.Problem) Event {
	e := warning(reasonEjected, actionProgram, strings.TrimPrefix(p.String(), p.Object+": "))
	e.Object, _ = ObjectOf(p)
	return e
}

// StartFailed is the Event of a server that could not be started, which ends the process. The reason is
// FailedToStartProxierHealthcheck, FailedToStartMetricServer or FailedToStartDrainServer.
func StartFailed(reason string, err error) Event { return warning(reason, actionStart, err.Error()) }

// warning is a warning about the own Node.
func warning(reason, action, note string) Event {
	return Event{Type: Warning, Reason: reason, Action: action, Note: note}
}

// RulesContested is the Event on the own Node that another program keeps changing
// the rules. Owned names the objects that the program must leave alone.
func RulesContested(what, owned string) Event {
	return warning(ReasonRulesContested, actionProgram,
		what+". While rules are missing, connections to Services fail, and the node is reported unhealthy. "+
			"Stop that program, or keep it off "+owned+": a firewall must not flush the whole ruleset.")
}

// RulesUncontested is the Event that a contest has ended.
func RulesUncontested() Event {
	return Event{
		Type: Normal, Reason: ReasonRulesUncontested, Action: actionProgram,
		Note: "No other program has changed the rules of Sluice for a minute; they are complete.",
	}
}

// HealthPortFailed is the Event of a health check port that could not be opened.
func HealthPortFailed(namespace, name string, err error) Event {
	e := warning(FailedToStartServiceHealthcheck, actionListen, err.Error())
	e.Object = Object{Kind: "Service", Namespace: namespace, Name: name}
	return e
}

// ConfigurationRefused is the Event of a changed configuration file that is not in force.
func ConfigurationRefused(err error) Event {
	return warning(reasonConfigurationRefused, actionReload,
		"The changed configuration file is invalid; the old configuration stays in force: "+err.Error())
}

// KubeProxyRuns is the Event of a kube-proxy that runs beside this proxy. It names the process, and says
// whether its rules are removed.
func KubeProxyRuns(note string) Event { return warning(reasonKubeProxyRuns, actionTakeOver, note) }

// KubeProxyRulesLeft is the Event of rules of kube-proxy that this proxy cannot remove.
// The note names them, and the command or manifest that removes them.
func KubeProxyRulesLeft(note string) Event { return warning(reasonRulesLeft, actionTakeOver, note) }

// Class is a sort of problem. There are few, so that they can be counted.
type Class string

// The classes.
const (
	Conflict Class = "conflict" // an address or port belongs to another object, or to the node itself
	Address  Class = "address"  // not an address or range that can be used
	Port     Class = "port"     // not a port that can be used
	Other    Class = "other"
)

// Classes lists all of them.
func Classes() []Class { return []Class{Conflict, Address, Port, Other} }

// Kinds lists the kinds of objects that have problems, as the API names them.
func Kinds() []string {
	return []string{"EndpointSlice", "Endpoints", "Node", "Pod", "Service", "ServiceCIDR"}
}

// Prefixes of reasons: of a contested claim, and of a frontend that hides, or would hide, a listener of the node.
const (
	beforeOwner  = "left out, as it belongs to "
	beforeHidden = "left out, as it would hide "
	beforeHides  = "hides "
)

// ClassOf returns the class of a problem, by its field.
func ClassOf(p route.Problem) Class {
	for _, start := range []string{beforeOwner, beforeHidden, beforeHides} {
		if strings.HasPrefix(p.Reason, start) {
			return Conflict
		}
	}
	for field := range strings.FieldsFuncSeq(p.Field, func(r rune) bool { return r == '.' || r == '[' }) {
		switch field {
		case "clusterIP", "clusterIPs", "externalIPs", "ingress", "loadBalancerSourceRanges",
			"addresses", "podIPs", "podCIDRs", "cidrs":
			return Address
		case "ports", "healthCheckNodePort":
			return Port
		}
	}
	return Other
}

// ObjectOf returns the object that a problem names; false if it is not an object of the cluster, such as a file.
func ObjectOf(p route.Problem) (Object, bool) {
	kind, name, _ := strings.Cut(p.Object, " ")
	if !slices.Contains(Kinds(), kind) || name == "" || strings.Contains(name, " ") {
		return Object{}, false
	}
	namespace, name, namespaced := strings.Cut(name, "/")
	if !namespaced {
		namespace, name = "", namespace
	}
	return Object{Kind: kind, Namespace: namespace, Name: name}, true
}

// OfProblems returns a warning for each object and class of problem, in the
// order given. It leaves out problems of files and others that no object has.
func OfProblems(problems []route.Problem) []Event {
	type key struct {
		object Object
		class  Class
	}
	var events []Event
	at, more := map[key]int{}, map[int]int{}
	for _, p := range problems {
		object, ok := ObjectOf(p)
		if !ok {
			continue
		}
		k := key{object, ClassOf(p)}
		p.Object = ""
		note := strings.TrimPrefix(p.String(), ": ")
		if i, known := at[k]; known {
			if len(events[i].Note)+len(note) > fullNote {
				more[i] += p.Weight()
			} else {
				events[i].Note += "; " + note
			}
			continue
		}
		at[k] = len(events)
		events = append(events, Event{
			Object: object, Type: Warning, Reason: k.class.reason(), Action: actionProgram, Note: note,
			Everywhere: object.Kind != "Node",
		})
	}
	for i, n := range more {
		events[i].Note += fmt.Sprintf("; and %d more", n)
	}
	return events
}

// OfSummary returns a warning for a problem that stands for the problems of a group. Nodes may count different ones,
// but one such Event is enough. It returns false if the problems are not of objects of the cluster.
func OfSummary(g Group, p route.Problem) (Event, bool) {
	events := OfProblems([]route.Problem{p})
	if len(events) == 0 {
		return Event{}, false
	}
	e := events[0]
	if e.Everywhere {
		e.Key = fmt.Sprintf("%+v", g)
	}
	return e, true
}

// fullNote is the length up to which problems are added to a note. A note is cut off after 1,024 bytes, which must
// not cut off the count of the other problems.
const fullNote = 900

func (c Class) reason() string {
	switch c {
	case Conflict:
		return "ConflictingClaim"
	case Address:
		return "InvalidAddress"
	case Port:
		return "InvalidPort"
	default:
		return "InvalidObject"
	}
}
