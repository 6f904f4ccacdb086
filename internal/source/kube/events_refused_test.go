package kube

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-proxy/sluice/internal/event"
)

// If Events are forbidden, that is logged once, and nothing else is affected.
func TestForbiddenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
			"", errors.New("no RBAC policy"))
		r.setResult(forbidden)
		r.run()
		for _, name := range []string{"a", "b", "c"} {
			r.Record(event.HealthPortFailed("default", name, errors.New("taken")))
			synctest.Wait()
		}
		log := r.log.String()
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, "refuses Events") ||
			!strings.Contains(log, "no RBAC policy") {
			t.Errorf("the log is:\n%s", log)
		}
		r.wantEvents()

		r.setResult(nil) // the right is granted, and revoked again
		r.Record(event.Starting())
		synctest.Wait()
		r.setResult(forbidden)
		r.Record(event.HealthPortFailed("default", "d", errors.New("taken")))
		r.wantEvents("Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1 ")
		if n := strings.Count(r.log.String(), "\n"); n != 2 {
			t.Errorf("%d lines in the log, want 2:\n%s", n, r.log)
		}
	})
}

// Events in a terminating namespace are refused. That is not logged.
func TestEventsInATerminatingNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.setResult(&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}},
		}})
		r.run()
		r.Record(event.HealthPortFailed("default", "web", errors.New("taken")))
		synctest.Wait()
		if log := r.log.String(); log != "" || r.requests.Load() != 1 {
			t.Errorf("%d requests; the log is:\n%s", r.requests.Load(), log)
		}
	})
}

// An outage of the server delays Events.
func TestEventsOutlastAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.setResult(errors.New("connection refused"))
		r.run()
		r.Record(event.Starting())
		time.Sleep(30 * time.Second)
		synctest.Wait()
		r.setResult(nil)
		time.Sleep(30 * time.Second)
		r.wantEvents("Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1 ")
		if log := r.log.String(); log != "" {
			t.Errorf("the log is:\n%s", log)
		}
	})
}
