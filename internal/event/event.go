// Package event says what people should find with `kubectl describe`: an Event
// is told to a Recorder, which brings it to where people look.
package event

// Type says whether an Event is good to know or asks for attention.
type Type string

// The types, as the API spells them.
const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// The reasons that kube-proxy's users know.
const (
	ReasonStarting                  = "Starting"
	FailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck"
	FailedToStartProxierHealthcheck = "FailedToStartProxierHealthcheck"
	FailedToStartMetricServer       = "FailedToStartMetricServer"
)

// The reasons of contests, which kube-proxy does not notice.
const (
	ReasonRulesContested   = "RulesContested"
	ReasonRulesUncontested = "RulesUncontested"
)

// reasonKubeProxyRuns is the reason of KubeProxyRuns.
const reasonKubeProxyRuns = "KubeProxyRuns"

// reasonRulesLeft is the reason of KubeProxyRulesLeft.
const reasonRulesLeft = "KubeProxyRulesLeft"

// What is being done; the last two are not kube-proxy's.
const (
	actionStart    = "StartKubeProxy"
	actionListen   = "Listen"
	actionProgram  = "Program"
	actionTakeOver = "TakeOver"
)

// Object is what an Event is about; the zero value is the own Node.
type Object struct{ Kind, Namespace, Name string }

// Event is one thing that happened.
type Event struct {
	Object Object
	Type   Type
	Reason string // one word, for machines
	Action string // what was being done, one word
	Note   string // for people; what is longer than 1,024 bytes is cut off

	// Everywhere says that every node finds the same: one Event is enough.
	Everywhere bool

	// Name, if Everywhere, is what the Event is known by where nodes may see
	// different objects and notes of it. Empty: by these.
	Name string
}

// Recorder brings Events to people. Record returns at once. It is safe for
// concurrent use.
type Recorder interface{ Record(e Event) }

// Discard records nothing: where there is no cluster nobody can look.
type Discard struct{}

// Record implements Recorder.
func (Discard) Record(Event) {}

// Starting is told when the proxy starts.
func Starting() Event {
	return Event{Type: Normal, Reason: ReasonStarting, Action: actionStart}
}

// StartFailed says that a server of the proxy could not be started, which ends
// the process. The reason is FailedToStartProxierHealthcheck or
// FailedToStartMetricServer.
func StartFailed(reason string, err error) Event {
	return Event{Type: Warning, Reason: reason, Action: actionStart, Note: err.Error()}
}

// RulesContested says, on the own Node, that another program keeps changing the
// rules.
func RulesContested(what string) Event {
	return Event{
		Type: Warning, Reason: ReasonRulesContested, Action: actionProgram,
		Note: what + ". While rules are missing connections to Services fail, and the node is reported unhealthy. " +
			"Stop that program, or keep it off the tables \"sluice\" (mode nftables) and the chains KUBE-* (mode iptables): " +
			"a firewall must not flush the whole ruleset.",
	}
}

// RulesUncontested says that it has ended.
func RulesUncontested() Event {
	return Event{
		Type: Normal, Reason: ReasonRulesUncontested, Action: actionProgram,
		Note: "No other program has changed the rules of Sluice for a minute; they are complete.",
	}
}

// HealthPortFailed says that the health check port of a Service could not be
// opened.
func HealthPortFailed(namespace, name string, err error) Event {
	return Event{
		Object: Object{Kind: "Service", Namespace: namespace, Name: name},
		Type:   Warning, Reason: FailedToStartServiceHealthcheck, Action: actionListen, Note: err.Error(),
	}
}

// KubeProxyRuns says that a kube-proxy, or a process that may be one, runs beside
// this proxy, which process it is, and what becomes of its rules.
func KubeProxyRuns(note string) Event {
	return Event{Type: Warning, Reason: reasonKubeProxyRuns, Action: actionTakeOver, Note: note}
}

// KubeProxyRulesLeft says which rules of kube-proxy this proxy cannot remove, and
// what removes them.
func KubeProxyRulesLeft(note string) Event {
	return Event{Type: Warning, Reason: reasonRulesLeft, Action: actionTakeOver, Note: note}
}
