# shellcheck shell=bash
# The version of Kubernetes that tests run, except for kubectl (hack/test-tools.sh), and how
# its programs are built from the Go module; scripts that use fill.sh source this after it.

kubernetes=v1.37.2

# module starts a throw-away main module in a new folder and goes there. It is
# needed because go install refuses modules that have replace directives.
module() {
	mkdir "${tmp:?}/$1"
	cd "$tmp/$1" || exit
	go mod init "assets/$1" 2>/dev/null
	go mod edit -require="$2@$3"
}

# build_kubernetes NAME pairs kubernetes v1.X.Y with the libraries published from
# the same commit as v0.X.Y: its own go.mod names them v0.0.0, which never existed.
build_kubernetes() {
	local gomod major minor staging library
	module "$1" k8s.io/kubernetes "$kubernetes"
	IFS=. read -r major minor _ <<<"${kubernetes#v}"
	gomod=$(cd / && go list -m -f '{{.GoMod}}' "k8s.io/kubernetes@$kubernetes")
	staging=$(awk '$2 == "v0.0.0" { print $1 }' "$gomod")
	for library in $staging; do
		go mod edit -replace="$library=$library@v0.${kubernetes#v1.}"
	done
	local version=k8s.io/component-base/version
	compile "$1" "k8s.io/kubernetes/cmd/$1" \
		"-X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=$minor"
}
