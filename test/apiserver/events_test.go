//go:build linux

package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/test/harness"
)

// record runs a Recorder of node A as a user, until the test ends, and returns
// what it logs.
func (w *world) record(user string) (event.Recorder, *harness.Log) {
	w.Helper()
	who, err := w.env.AddUser(envtest.User{Name: user}, nil)
	w.must(err)
	client, err := kube.NewClient(who.Config())
	w.must(err)
	said := &harness.Log{}
	r := kube.NewRecorder(kube.RecorderOptions{
		Client: client, NodeName: w.lab.NodeA.Name(), Log: slog.New(slog.NewTextHandler(said, nil)),
	})
	ended := make(chan error, 1)
	go func() { ended <- r.Run(w.Context()) }()
	w.Cleanup(func() {
		if err := <-ended; err != nil {
			w.Errorf("record Events: %v", err)
		}
	})
	return r, said
}

// described waits until the Events that kubectl describe shows for an object
// are these.
func (w *world) described(namespace string, obj runtime.Object, want ...string) {
	w.Helper()
	var got []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		list, err := w.Client.CoreV1().Events(namespace).SearchWithContext(w.Context(), scheme.Scheme, obj)
		w.must(err)
		got = nil
		for _, e := range list.Items {
			again := ""
			if e.Series != nil {
				again = " again"
			}
			got = append(got, fmt.Sprintf("%s %s %s %s/%s%s: %s", e.Type, e.Reason, e.Action, e.ReportingController, e.ReportingInstance, again, e.Message))
		}
		slices.Sort(got)
		got = slices.Compact(got) // every daemon that ran on this node started
		if slices.Equal(got, want) {
			return
		}
	}
	w.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// testEvents records with the rights that kube-proxy has.
func testEvents(w *world) {
	svc, err := w.Client.CoreV1().Services(w.ns).Create(w.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	w.must(err)
	r, said := w.record("system:kube-proxy")
	r.Record(event.Starting())
	taken := event.HealthPortFailed(w.ns, "web", errors.New("port 30000 is taken"))
	r.Record(taken)
	on := "kube-proxy/" + w.lab.NodeA.Name()
	w.described(w.ns, svc, "Warning FailedToStartServiceHealthcheck Listen "+on+": port 30000 is taken")
	r.Record(taken)
	w.described(w.ns, svc, "Warning FailedToStartServiceHealthcheck Listen "+on+" again: port 30000 is taken")

	// A long note is cut off, and not refused.
	r.Record(event.Event{
		Object: event.Object{Kind: "Service", Namespace: w.ns, Name: "web"},
		Type:   event.Warning, Reason: "InvalidAddress", Action: "Program", Note: strings.Repeat("ä", 4000),
	})
	w.described(w.ns, svc,
		"Warning FailedToStartServiceHealthcheck Listen "+on+" again: port 30000 is taken",
		"Warning InvalidAddress Program "+on+": "+strings.Repeat("ä", 510)+"…",
	)

	// kubectl looks for the Events of a Node with its name for UID.
	node := &corev1.ObjectReference{Kind: "Node", Name: w.lab.NodeA.Name(), UID: types.UID(w.lab.NodeA.Name())}
	w.described(metav1.NamespaceAll, node, "Normal Starting StartKubeProxy "+on+": ")
	if said.String() != "" {
		w.Errorf("the log says:\n%s", said)
	}
}

// testEventsForbidden records without any right to do so.
func testEventsForbidden(w *world) {
	r, said := w.record("nobody")
	for _, name := range []string{"a", "b", "c"} {
		r.Record(event.HealthPortFailed(w.ns, name, errors.New("taken")))
	}
	time.Sleep(time.Second)
	if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "refuses Events") {
		w.Errorf("the log says:\n%s", text)
	}
}
