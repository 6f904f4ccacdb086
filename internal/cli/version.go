package cli

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/metrics"
)

// stamp is the version that the linker sets: -X .../internal/cli.stamp=v1.2.3.
var stamp string //nolint:gochecknoglobals // the linker can set nothing else

// version returns the version of the build, from the linker or else from the go tool.
func version() string {
	if stamp != "" {
		return stamp
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "v0.0.0-dev"
	}
	return info.Main.Version
}

func newVersion(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(env.Stdout, "sluice %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
}

// printVersion prints --version as kube-proxy does, because installers parse it.
func printVersion(w io.Writer, v config.Version) error {
	reported := cmp.Or(v.Report, metrics.KubernetesVersion(version()))
	if v.Print == "raw" {
		_, err := fmt.Fprintf(w, "version.Info{GitVersion:%q, GoVersion:%q, Compiler:%q, Platform:%q}\n",
			reported, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
		return err
	}
	_, err := fmt.Fprintf(w, "Kubernetes %s\n", reported)
	return err
}
