//go:build linux

package apiserver

import (
	"bytes"
	"os/exec"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// testProgram runs Sluice as a process on node A, with a kubeconfig file.
func testProgram(w *testEnv) {
	program, err := harness.Program()
	w.must(err)
	w.Forward(w, w.lab.NodeA)
	kubeconfig, err := w.Kubeconfig("")
	w.must(err)
	svc := w.createService()
	w.setEndpoints("web", w.pods[0])

	var log bytes.Buffer
	cmd := exec.Command(program, "--kubeconfig", kubeconfig, "--hostname-override", "node-a",
		"--healthz-bind-address=", "--metrics-bind-address=")
	cmd.Stderr = &log
	wait, err := w.lab.NodeA.Start(cmd)
	w.must(err)
	w.waitReached(w.client, targets(svc, 80), w.pods[0])

	began := time.Now()
	w.must(cmd.Process.Signal(syscall.SIGTERM))
	if err := wait(); err != nil {
		w.Errorf("after SIGTERM: %v\n%s", err, log.String())
	}
	if took := time.Since(began); took > machine.Scale(time.Second) {
		w.Errorf("stopping took %v", took)
	}
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
	w.waitOutcome(w.client, ports(81, svc.Spec.ClusterIPs...), lab.Refused)
}
