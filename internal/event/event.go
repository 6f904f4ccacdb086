// Package event has the Events that people see with `kubectl describe`. A Recorder writes them to the API server.
package event

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
)

// The reasons that kube-proxy does not have.
const (
	ReasonRulesContested       = "RulesContested"
	ReasonRulesUncontested     = "RulesUncontested"
	reasonKubeProxyRuns        = "KubeProxyRuns"
	reasonRulesLeft            = "KubeProxyRulesLeft"
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

// StartFailed is the Event of a server that could not be started, which ends the process. The reason is
// FailedToStartProxierHealthcheck or FailedToStartMetricServer.
func StartFailed(reason string, err error) Event { return warning(reason, actionStart, err.Error()) }

// warning is a warning about the own Node.
func warning(reason, action, note string) Event {
	return Event{Type: Warning, Reason: reason, Action: action, Note: note}
}

// RulesContested is the Event on the own Node that another program keeps changing
// the rules. Owned names the objects that the program must leave alone.
func RulesContested(what, owned string) Event {
	return warning(ReasonRulesContested, actionProgram,
		what+". While rules are missing connections to Services fail, and the node is reported unhealthy. "+
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
		"The configuration file is refused, the old configuration stays in force: "+err.Error())
}

// KubeProxyRuns is the Event of a kube-proxy that runs beside this proxy. It names the process, and says
// whether its rules are removed.
func KubeProxyRuns(note string) Event { return warning(reasonKubeProxyRuns, actionTakeOver, note) }

// KubeProxyRulesLeft is the Event of rules of kube-proxy that this proxy cannot remove.
// The note names them, and the command or manifest that removes them.
func KubeProxyRulesLeft(note string) Event { return warning(reasonRulesLeft, actionTakeOver, note) }
