package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// TestMain makes this test program act as the real one under both its names, and
// as one with a further data plane under the name memory.
func TestMain(m *testing.M) {
	testscript.Main(testsInNamespace{m}, map[string]func(){
		"sluice": program(nil), "kube-proxy": program(nil),
		"memory": program(append(app.Kinds(), (&planetest.Memory{}).Kind())),
		"daemon": daemon, "lagging": lagging, "fetch": fetch,
		"answer": answer, "ask": request, "keep": keep, "says": says, "closed": closed, "onterminal": onTerminal,
	})
}

// program returns the real program with data planes.
func program(kinds []plane.Kind) func() {
	return func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(Main(ctx, os.Args, Env{
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Kinds: kinds,
			Hostname: func() (string, error) { return "Node-A", nil },
		}))
	}
}

// noPause is an environment variable of programs with the race detector: otherwise each waits for a second at its end.
const noPause = "GORACE=atexit_sleep_ms=0"

// TestScripts runs the scripts of commands. They write to no kernel, because they run without privileges.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			// Where no test machine's cluster is found by accident.
			env.Vars = append(env.Vars, "HOME="+env.WorkDir, "KUBECONFIG=", "KUBERNETES_SERVICE_HOST=",
				"KUBERNETES_SERVICE_PORT=", noPause)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"unprivileged": unprivileged,
			"lines":        lines,
			"link":         link,
			"exits":        exits,
		},
	})
}

// unprivileged runs a program that may do nothing to the network; it is expected to fail:
//
//	unprivileged PROGRAM ARG...
//
// In a user namespace that maps nobody to root a process has no capabilities, whoever started it.
func unprivileged(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: unprivileged program arg...")
	}
	cmd := exec.Command(find(ts, args[0]), args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Dir = ts.MkAbs(".")
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = powerless()
	}
	if err := cmd.Run(); err == nil {
		ts.Fatalf("%s does not fail without privileges", args[0])
	}
}

// link makes a symbolic link to a program:
//
//	link PROGRAM NAME
func link(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: link program name")
	}
	ts.Check(os.Symlink(find(ts, args[0]), ts.MkAbs(args[1])))
}

// find looks for a program where the script does.
func find(ts *testscript.TestScript, program string) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path := filepath.Join(dir, program); isThere(path) {
			return path
		}
	}
	ts.Fatalf("no %s in $PATH", program)
	return ""
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lines compares the number of lines in a file or standard output:
//
//	lines N FILE
func lines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines n file")
	}
	text := ts.ReadFile(args[1])
	if got := strings.Count(text, "\n"); args[0] != strconv.Itoa(got) {
		ts.Fatalf("%s has %d lines, want %s:\n%s", args[1], got, args[0], text)
	}
}

// exits runs a program and looks at the status it ends with:
//
//	exits STATUS PROGRAM ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits status program arg...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if e, ended := errors.AsType[*exec.ExitError](err); ended {
		got = e.ExitCode()
	} else {
		ts.Check(err)
	}
	if args[0] != strconv.Itoa(got) {
		ts.Fatalf("%s ended with %d, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}
