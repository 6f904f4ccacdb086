{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/component: proxy
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* A field of the configuration, by its name: list . "mode". */ -}}
{{- define "sluice.field" -}}
{{ dig (index . 1) "" ((index . 0).Values.config | default dict) }}
{{- end }}

{{- /* Not empty in modes with rules of iptables, which need programs, and rights for them. */ -}}
{{- define "sluice.iptables" -}}
{{ if has (include "sluice.field" (list . "mode")) (list "iptables" "userspace" "ipvs") }}yes{{ end }}
{{- end }}

{{- /* Not empty in mode ebpf, which needs rights, and file systems of the host. */ -}}
{{- define "sluice.ebpf" -}}
{{ if eq (include "sluice.field" (list . "mode")) "ebpf" }}yes{{ end }}
{{- end }}

{{- /* Not empty if a privileged init container writes kernel parameters, which mode ipvs always needs. */ -}}
{{- define "sluice.sysctls" -}}
{{ if or .Values.sysctls.enabled (eq (include "sluice.field" (list . "mode")) "ipvs") }}yes{{ end }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ if include "sluice.iptables" . }}-iptables{{ end }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "sluice.configMap" -}}
{{ .Values.existingConfigMap | default "sluice" }}
{{- end }}

{{- /* The configuration as the values have it, with what other values decide. */ -}}
{{- define "sluice.config" -}}
{{- $zero := dict "maxPerCore" 0 "min" 0 "tcpEstablishedTimeout" "0s" "tcpCloseWaitTimeout" "0s" -}}
{{- $conntrack := ternary .Values.sysctls.conntrack $zero .Values.sysctls.enabled -}}
{{- $metrics := ternary "127.0.0.1:10249" "0.0.0.0:10249" (eq .Values.metrics.scrape "none") -}}
{{- $computed := dict "conntrack" $conntrack "metricsBindAddress" $metrics -}}
{{- if and (include "sluice.iptables" .) (not (include "sluice.sysctls" .)) -}}
{{- $_ := set $computed "iptables" (dict "localhostNodePorts" false) -}}
{{- end -}}
{{- toYaml (merge (deepCopy (.Values.config | default dict)) $computed) -}}
{{- end }}

{{- define "sluice.healthzPort" -}}
{{ include "sluice.port" (list (include "sluice.field" (list . "healthzBindAddress")) 10256) }}
{{- end }}

{{- define "sluice.metricsPort" -}}
{{ include "sluice.port" (list (include "sluice.field" (list . "metricsBindAddress")) 10249) }}
{{- end }}

{{- /* The port of an address such as 0.0.0.0:10256 or [::1]:10256, or a default. */ -}}
{{- define "sluice.port" -}}
{{- $address := index . 0 -}}
{{- if regexMatch "^([^:]*|\\[.*\\]):[0-9]+$" $address -}}
{{ regexFind "[0-9]+$" $address }}
{{- else -}}
{{ index . 1 }}
{{- end }}
{{- end }}

{{- /* The address of probes; empty: that of the pod, which is the node's. */ -}}
{{- define "sluice.probeHost" -}}
{{- $address := include "sluice.field" (list . "healthzBindAddress") | trimPrefix "[" -}}
{{- $host := regexFind "^([0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)" $address -}}
{{ if not (has $host (list "0.0.0.0" "::")) }}{{ $host }}{{ end }}
{{- end }}

{{- define "sluice.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
# Where the API server is, in place of its Service: Sluice cannot depend on what
# it is to provide.
- name: KUBERNETES_SERVICE_HOST
  valueFrom:
    configMapKeyRef:
      name: sluice-apiserver
      key: host
- name: KUBERNETES_SERVICE_PORT
  valueFrom:
    configMapKeyRef:
      name: sluice-apiserver
      key: port
{{- end }}
