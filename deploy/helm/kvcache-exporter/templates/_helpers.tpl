{{- define "kvcache-exporter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "kvcache-exporter.fullname" -}}
{{- $name := include "kvcache-exporter.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kvcache-exporter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kvcache-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: standalone
{{- end }}

{{- define "kvcache-exporter.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "kvcache-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Argument: this chart's values. */}}
{{- define "kvcache-exporter.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository .image.tag }}
{{- end }}
{{- end }}

{{- define "kvcache-exporter.securityContext" -}}
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Rules and boards are copied in when the chart is assembled: helm reads nothing outside its folder. */}}
{{- define "kvcache-exporter.assembled" -}}
{{- fail (printf "this chart has no %s: it is the source. Assemble it with `make chart` and install dist/%s-%s.tgz" . "kvcache-exporter" "VERSION") }}
{{- end }}
