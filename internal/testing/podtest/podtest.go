// Package podtest is an API server with pods in which commands run, for tests of programs that people run.
package podtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Server has pods, and runs commands in them.
type Server struct {
	Pods []corev1.Pod
	Run  func(r *http.Request, pod string, command []string) Result // several at a time
}

// Result is what a command did.
type Result struct {
	Stdout, Stderr string
	Status         int

	Forbidden bool // the user may not run it
}

// Start starts the server, and returns the path of a kubeconfig for it. Both end with the test.
func (s *Server) Start(t testing.TB) (kubeconfig string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/pods", s.list)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", s.list)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", s.get)
	mux.HandleFunc("/api/v1/namespaces/{namespace}/pods/{name}/exec", s.exec)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: test,
clusters: [{name: test, cluster: {server: "%s"}}], contexts: [{name: test, context: {cluster: test}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// list lists pods by selectors, in pages.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	byLabel, labelErr := labels.Parse(query.Get("labelSelector"))
	byField, fieldErr := fields.ParseSelector(query.Get("fieldSelector"))
	if labelErr != nil || fieldErr != nil {
		fail(w, http.StatusBadRequest, "invalid selector")
		return
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for _, p := range s.Pods {
		known := fields.Set{"status.podIP": p.Status.PodIP, "status.phase": string(p.Status.Phase)}
		namespace := r.PathValue("namespace")
		if byLabel.Matches(labels.Set(p.Labels)) && byField.Matches(known) && (namespace == "" || namespace == p.Namespace) {
			list.Items = append(list.Items, p)
		}
	}
	from, _ := strconv.Atoi(query.Get("continue")) // 0 without it
	limit, _ := strconv.Atoi(query.Get("limit"))
	list.Items = list.Items[from:]
	if limit > 0 && len(list.Items) > limit {
		list.Items, list.Continue = list.Items[:limit], strconv.Itoa(from+limit)
	}
	write(w, http.StatusOK, list)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	for _, p := range s.Pods {
		if p.Namespace == r.PathValue("namespace") && p.Name == r.PathValue("name") {
			p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
			write(w, http.StatusOK, p)
			return
		}
	}
	fail(w, http.StatusNotFound, fmt.Sprintf("pods %q not found", r.PathValue("name")))
}

// The channels of the protocol v5.channel.k8s.io.
const (
	stdout = 1
	stderr = 2
	result = 3
)

// exec runs a command over a WebSocket, as kubelet does.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	did := s.Run(r, r.PathValue("name"), r.URL.Query()["command"])
	if did.Forbidden {
		fail(w, http.StatusForbidden, fmt.Sprintf("pods %q is forbidden: cannot create pods/exec", r.PathValue("name")))
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	end := metav1.Status{Status: metav1.StatusSuccess}
	if did.Status != 0 {
		end = metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "command terminated",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(did.Status)}}},
		}
	}
	ended, _ := json.Marshal(end) // a Status has a form
	for channel, text := range map[byte]string{stdout: did.Stdout, stderr: did.Stderr} {
		_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, text...)) // the client may be gone
	}
	_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{result}, ended...))
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

func fail(w http.ResponseWriter, code int, message string) {
	reasons := map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
		http.StatusBadRequest: metav1.StatusReasonBadRequest,
	}
	write(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reasons[code], Message: message, //nolint:gosec // of HTTP
	})
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}
